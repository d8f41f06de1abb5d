"""Each option of AANetConfig has its effect in a run, and is written to config.json."""

from __future__ import annotations

import csv
import dataclasses
import json

import pytest
import torch

from aanets_plugin import AANetConfig, BilevelStrategy
from aanets_plugin.baselines import LUCIR
from aanets_plugin.config import DEFAULTS
from aanets_plugin.experiments import AANets
from aanets_plugin.experiments.cli import main
from aanets_plugin.experiments.options import AANET_OPTIONS, make_parser
from aanets_plugin.experiments.request import aanet_config_from
from aanets_plugin.official import OfficialBilevel
from tests.experiments.run_setup import TRAINING, saved, small_run

TWO_EPOCHS = dataclasses.replace(TRAINING, epochs=2)


@pytest.fixture(scope="module")
def run_with(tmp_path_factory):
    """Gives the folder of a run with these options of AANets; all share the first phase."""
    root = tmp_path_factory.mktemp("runs")
    small_run(root / "plain", training=TWO_EPOCHS)
    folders = {}

    def get(**options):
        key = repr(sorted(options.items()))
        if key not in folders:
            folders[key] = root / str(len(folders))
            options = {"aanets": AANets(**options), "training": TWO_EPOCHS}
            small_run(folders[key], base=root / "plain", **options)
        return folders[key]

    return get


def alphas(folder):
    """(phase, epoch, level, first weight) of each row of alpha.csv."""
    with open(folder / "alpha.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return [(int(r["phase"]), int(r["epoch"]), r["level"], float(r["alpha_0"])) for r in rows]


def first_weights(folder):
    return [alpha for *_, alpha in alphas(folder)]


def settings(folder):
    return json.loads((folder / "config.json").read_text(encoding="utf-8"))["aanets"]


def half_in_the_second_epoch(epoch):
    return 0.5**epoch


# -- in a run ------------------------------------------------------------------------------------


def test_aanets_is_a_short_form_of_the_config():
    assert AANets() == AANetConfig() == DEFAULTS
    names = {"lr": 0.1, "per_class": 3, "momentum": 0.5}
    short = AANets(("all", "frozen"), "paired", 0.1, 3, momentum=0.5)
    assert short == AANetConfig(blocks=("all", "frozen"), stem="paired", **names)
    with pytest.raises(TypeError, match="speed"):
        AANets(speed=1)


def test_only_the_stages_that_are_named_become_levels(run_with):
    chosen = run_with(stages=["layer2", "layer3"])
    assert {level for _, _, level, _ in alphas(chosen)} == {"layer2", "layer3"}
    state = saved(chosen)["net"]
    assert "backbone.layer3.alpha" in state
    assert "backbone.layer1.alpha" not in state
    assert {level for _, _, level, _ in alphas(run_with())} == {"layer1", "layer2", "layer3"}


def test_alpha_starts_at_the_weights_that_are_given(run_with):
    fixed = {"alpha_lr": 0.0}
    given = first_weights(run_with(alpha=(0.7, 0.3), **fixed))
    assert given == pytest.approx([0.7] * len(given))
    assert set(first_weights(run_with(**fixed))) == {0.5}


def test_update_base_multiplies_phi_into_the_frozen_kernels(run_with):
    def kernels(folder):
        state = saved(folder)["net"]
        names = [name for name in state if ".branches.1." in name and ".delta" in name]
        assert names
        delta = torch.cat([state[name].flatten() for name in names])
        base = saved(folder.parent / "plain", "base")["net"]
        theta = state["backbone.layer1.branches.1.0.conv1.weight"]
        return delta, torch.equal(theta, base["backbone.layer1.0.conv1.weight"])

    delta, same = kernels(run_with(update_base=True))
    assert (delta == 0).all()
    assert not same
    delta, same = kernels(run_with())
    assert (delta != 0).any()
    assert same


def test_the_official_update_is_used(run_with, tmp_path, monkeypatch):
    folder = run_with(official=True, alpha_lr=1e-2)
    gradients = saved(folder)["bilevel"]["gradients"]
    assert all(gradient.abs().sum() > 0 for gradient in gradients.values())
    assert "gradients" not in saved(run_with())["bilevel"]
    assert first_weights(folder) != first_weights(run_with(alpha_lr=1e-2))

    used = []
    update = OfficialBilevel._update
    monkeypatch.setattr(
        OfficialBilevel, "_update", lambda *args: used.append(args) or update(*args)
    )
    small_run(tmp_path / "official", aanets=AANets(official=True))
    assert len(used) == 2
    small_run(tmp_path / "ours", aanets=AANets())
    assert len(used) == 2


@pytest.mark.parametrize("options", [{"official": True}, {"update_base": True}, {"momentum": 0.5}])
def test_a_resumed_run_is_bit_identical(options, run_with, tmp_path, monkeypatch):
    whole, part = run_with(**options), tmp_path / "part"
    again = {"aanets": AANets(**options), "training": TWO_EPOCHS, "base": whole.parent / "plain"}
    begin, phases = BilevelStrategy.begin_phase, []

    def stop_in_the_second_phase(bilevel):
        phases.append(bilevel)
        if len(phases) == 2:
            raise KeyboardInterrupt
        begin(bilevel)

    with monkeypatch.context() as patch:
        patch.setattr(BilevelStrategy, "begin_phase", stop_in_the_second_phase)
        with pytest.raises(KeyboardInterrupt):
            small_run(part, **again)
    assert not (part / "about.json").exists()
    small_run(part, resume=True, **again)
    for file in ("alpha.csv", "metrics.jsonl", "config.json"):
        assert (part / file).read_bytes() == (whole / file).read_bytes()


@pytest.mark.parametrize(
    "options",
    [{"momentum": 0.9}, {"normalize": False}, {"max_batches": 1}, {"balanced_per_class": 2}],
    ids=str,
)
def test_other_options_of_the_update_change_the_course_of_alpha(options, run_with):
    assert first_weights(run_with(**options)) != first_weights(run_with())


def test_a_schedule_scales_the_steps_of_alpha(run_with):
    """The first step is the same, the second of a phase is shorter."""
    scheduled = alphas(run_with(schedule=half_in_the_second_epoch))
    constant = alphas(run_with())
    for (phase, epoch, _, alpha), (*_, usual) in zip(scheduled, constant, strict=True):
        if phase == 1:
            assert (alpha == usual) == (epoch == 0)


# -- in config.json ------------------------------------------------------------------------------


def test_the_file_has_four_options_unless_others_are_set(run_with):
    four = {
        "blocks": ["all", "scaling"],
        "stem": "stable",
        "alpha_lr": DEFAULTS.lr,
        "balanced_per_class": None,
    }
    assert settings(run_with()) == four
    assert settings(run_with(update_base=True)) == {**four, "update_base": True}
    scheduled = settings(run_with(schedule=half_in_the_second_epoch))
    assert scheduled == {**four, "schedule": "half_in_the_second_epoch"}
    stages = settings(run_with(stages=["layer2", "layer3"]))
    assert stages == {**four, "stages": ["layer2", "layer3"]}


# -- on the command line -------------------------------------------------------------------------


def config_of(command):
    return aanet_config_from(make_parser(LUCIR()).parse_args(command.split()))


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("", {}),
        ("--blocks all+frozen --stem paired", {"blocks": ("all", "frozen"), "stem": "paired"}),
        ("--stages layer1 layer2", {"stages": ("layer1", "layer2")}),
        ("--alpha 0.7 0.3", {"alpha": (0.7, 0.3)}),
        ("--alpha-lr 0.1 --alpha-momentum 0.9", {"lr": 0.1, "momentum": 0.9}),
        ("--no-normalize", {"normalize": False}),
        ("--official-alpha", {"official": True}),
        ("--official-alpha icarl --phi-decay 5e-4", {"official": "icarl", "phi_decay": 5e-4}),
        ("--update-base", {"update_base": True}),
        ("--alpha-batches 2 --alpha-per-class 3", {"max_batches": 2, "per_class": 3}),
        ("--imbalanced-alpha", {"balanced": False}),
    ],
)
def test_the_command_line_sets_the_config(command, options):
    assert config_of(command) == AANetConfig(**options)


def test_every_option_but_the_schedule_has_a_flag():
    fields = {field.name for field in dataclasses.fields(AANetConfig)}
    assert set(AANET_OPTIONS.values()) == fields - {"schedule"}
    assert "AANets(schedule=" in make_parser(LUCIR()).format_help().replace("\n", " ")


@pytest.mark.parametrize("flag", ["--no-normalize", "--alpha 0.7 0.3", "--stages layer1"])
def test_options_of_aanets_are_refused_for_the_plain_network(flag, capsys):
    with pytest.raises(SystemExit):
        main(LUCIR(), ["--no-aanet", *flag.split()])
    assert f"cannot be combined with {flag.split()[0]}." in capsys.readouterr().err


def test_imbalanced_data_have_no_number_per_class(capsys):
    with pytest.raises(SystemExit):
        main(LUCIR(), ["--imbalanced-alpha", "--alpha-per-class", "3"])
    assert "--alpha-per-class 3: cannot be combined" in capsys.readouterr().err


def test_a_comparison_runs_with_options_of_aanets(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small = "--phases 1 --epochs 1 --images-per-class 4 --memory-per-class 2 --output out"
    options = "--stages layer3 --alpha 0.7 0.3 --official-alpha --update-base --fixed-alpha"
    main(LUCIR(), f"{small} {options}".split())
    learned, fixed = (tmp_path / "out" / f"{arm}-0" for arm in ("learned", "fixed"))
    assert settings(learned) == {
        "blocks": ["all", "scaling"],
        "stem": "stable",
        "alpha_lr": 1e-8,
        "balanced_per_class": None,
        "stages": ["layer3"],
        "alpha": [0.7, 0.3],
        "momentum": 0.9,
        "normalize": False,
        "official": "lucir",
        "update_base": True,
    }
    assert settings(fixed) == {**settings(learned), "alpha_lr": 0.0}
    assert {level for _, _, level, _ in alphas(learned)} == {"layer3"}
    assert first_weights(fixed) == pytest.approx([0.7])
