"""The command line: options, presets, errors and small comparisons, without a subprocess."""

from __future__ import annotations

import csv
import dataclasses
import json
import shutil

import pytest
import torch
from torch import nn
from torchvision import models

from aanets_plugin import convert_to_aanet, levels
from aanets_plugin.baselines import LUCIR, METHODS, Joint, PODNet
from aanets_plugin.errors import ConfigurationError
from aanets_plugin.experiments.arms import arms_of, same_start
from aanets_plugin.experiments.backbones import OUR_BACKBONES, OpenBlock, backbone_factory
from aanets_plugin.experiments.cli import main
from aanets_plugin.experiments.comparison_request import output_folder
from aanets_plugin.experiments.options import make_parser
from aanets_plugin.experiments.presets import (
    DATASET_SETTINGS,
    PAPER,
    PAPER_PODNET,
    default_split,
    setting,
)
from aanets_plugin.experiments.settings import AANets

TINY = ["--phases", "1", "--epochs", "1", "--images-per-class", "8", "--memory-per-class", "2"]


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


# -- options and presets -------------------------------------------------------------------------


def test_every_option_is_explained():
    actions = make_parser(LUCIR())._actions
    assert len(actions) > 25
    assert [action.dest for action in actions if not action.help] == []


def test_the_defaults_of_all_datasets_are_settings_that_can_be_used():
    for name, chosen in DATASET_SETTINGS.items():
        assert chosen.training.epochs > 0, name
        assert isinstance(backbone_factory(chosen.backbone)(), nn.Module)


@pytest.mark.parametrize(
    ("dataset", "method", "epochs", "batch", "lr", "decay", "schedule", "jitter", "own"),
    [
        ("cifar100", "icarl", 160, 128, 0.1, 5e-4, "step", False, {"beta": 0.25}),
        ("cifar100", "lucir", 160, 128, 0.1, 5e-4, "step", False, {"base": 5}),
        ("cifar100", "podnet", 160, 128, 0.1, 5e-4, "cosine", True, {"spatial_weight": 3}),
        ("imagenet-subset", "icarl", 90, 128, 0.05, 5e-4, "cosine", True, {"beta": 0.25}),
        ("imagenet-subset", "lucir", 90, 128, 0.05, 5e-4, "cosine", True, {"base": 10}),
        ("imagenet-subset", "mnemonics", 90, 128, 0.05, 5e-4, "cosine", True, {"base": 10}),
        ("imagenet-subset", "podnet", 90, 64, 0.05, 5e-4, "cosine", True, {"flat_weight": 10}),
        ("imagenet", "lucir", 90, 128, 0.1, 1e-4, "step", False, {"base": 10}),
        ("imagenet", "podnet", 90, 64, 0.05, 1e-4, "cosine", True, {"finetune_lr": 0.01}),
    ],
)
def test_the_preset_has_the_numbers_of_the_authors(
    dataset, method, epochs, batch, lr, decay, schedule, jitter, own
):
    method = METHODS[method]()
    chosen = setting(dataset, "paper", method)
    training = chosen.training
    assert chosen.backbone == {"cifar100": "resnet32"}.get(dataset, "resnet18_open")
    assert [training.epochs_of(phase) for phase in (0, 1)] == [epochs, epochs]
    assert (training.lr, training.lr_of(0), training.weight_decay) == (lr, lr, decay)
    assert (training.batch_size, training.momentum) == (batch, 0.9)
    assert (training.schedule or method.schedule) == schedule
    assert (chosen.memory_per_class, chosen.color_jitter) == (20, jitter)
    settings = chosen.configured(method).settings()
    assert {**settings, **own} == settings


def test_the_preset_leaves_hyperparameters_that_were_changed():
    chosen = setting("imagenet", "paper", LUCIR())
    assert chosen.configured(LUCIR(base=7.0, k=1)) == LUCIR(base=7.0, k=1)
    assert chosen.configured(LUCIR(k=1)) == LUCIR(base=10.0, k=1)


@pytest.mark.parametrize(
    ("dataset", "epochs", "falls"), [("cifar100", 160, (80, 120)), ("imagenet", 90, (30, 60))]
)
def test_the_preset_divides_the_learning_rate_where_the_paper_does(dataset, epochs, falls):
    training = setting(dataset, "paper").training
    factors = [training.factor(epoch, epochs, "step") for epoch in range(epochs)]
    assert tuple(e for e in range(1, epochs) if factors[e] < factors[e - 1]) == falls
    assert (factors[0], factors[falls[0]], factors[falls[1]]) == (1.0, 0.1, 0.01)


@pytest.mark.parametrize(("classes", "split"), [(10, (5, 5)), (100, (50, 5)), (1000, (500, 5))])
def test_half_of_the_classes_are_learned_first(classes, split):
    assert default_split(classes, None, None) == split
    assert default_split(classes, None, 25) == (split[0], 25)


def test_podnet_alone_has_a_cosine_schedule_and_imagenet_subset():
    assert {name: method.schedule for name, method in METHODS.items()} == {
        "icarl": "step",
        "lucir": "step",
        "podnet": "cosine",
        "mnemonics": "step",
    }
    assert [chosen.training.schedule for chosen in PAPER.values()] == [None, "cosine", None]
    assert all(chosen.training.schedule is None for chosen in PAPER_PODNET.values())


def test_epochs_of_the_first_phase_follow_in_proportion():
    digits = DATASET_SETTINGS["digits"]
    usual, more = digits.training, digits.with_epochs(30).training
    assert more.base_epochs / 30 == pytest.approx(usual.base_epochs / usual.epochs)
    assert digits.with_epochs(3, 7).training.base_epochs == 7
    assert digits.with_epochs(None, 7).training == dataclasses.replace(usual, base_epochs=7)


def test_arms():
    aanets = AANets()
    assert list(arms_of(LUCIR(), None)) == ["plain"]
    arms = arms_of(LUCIR(), aanets, fixed_alpha=True, upper_bound=True)
    assert list(arms) == ["plain", "learned", "fixed", "joint"]
    assert arms["plain"].aanets is None
    assert arms["learned"].aanets == aanets
    assert arms["fixed"].aanets == dataclasses.replace(aanets, lr=0.0)
    assert isinstance(arms["joint"].method, Joint)


# -- output folders ------------------------------------------------------------------------------


def test_a_second_start_takes_the_next_free_folder_and_resume_the_last_one(tmp_path):
    default = tmp_path / "runs" / "lucir"
    assert output_folder(None, default, resume=False) == default
    assert output_folder(None, default, resume=True) == default
    default.mkdir(parents=True)
    second = default.with_name("lucir-2")
    assert output_folder(None, default, resume=False) == second
    assert output_folder(None, default, resume=True) == default
    second.mkdir()
    assert output_folder(None, default, resume=False) == default.with_name("lucir-3")
    assert output_folder(None, default, resume=True) == second


def test_a_folder_that_is_given_must_hold_no_runs(tmp_path):
    assert output_folder(tmp_path, tmp_path / "other", resume=False) == tmp_path
    (tmp_path / "plain-0").mkdir()
    (tmp_path / "plain-0" / "config.json").write_text("{}")
    with pytest.raises(ConfigurationError, match="Add --resume"):
        output_folder(tmp_path, tmp_path / "other", resume=False)
    assert output_folder(tmp_path, tmp_path / "other", resume=True) == tmp_path


# -- backbones -----------------------------------------------------------------------------------


def before_pooling(model, x):
    seen = []
    with model.avgpool.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0])):
        model.eval()(x)
    return seen[0]


@pytest.mark.parametrize("name", OUR_BACKBONES)
def test_our_backbones_convert_and_end_without_a_relu(name):
    model = backbone_factory(name)()
    assert before_pooling(model, torch.randn(2, 3, 32, 32)).min() < 0
    assert len(levels(convert_to_aanet(model))) == (4 if name == "resnet18_open" else 3)


def test_the_open_resnet18_is_torchvisions_but_for_the_last_relu():
    ours, theirs = backbone_factory("resnet18_open")(), backbone_factory("torchvision:resnet18")()
    assert isinstance(ours.layer4[-1], OpenBlock)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(2, 3, 32, 32)
    assert torch.equal(before_pooling(ours, x).relu(), before_pooling(theirs, x))


def test_a_bare_name_is_ours_then_torchvisions_then_timms():
    assert type(backbone_factory("resnet20")()).__name__ == "CifarResNet"
    assert isinstance(backbone_factory("resnet18")(), models.ResNet)
    timms = [backbone_factory("timm:resnet18")(), backbone_factory("resnet10t")()]
    assert all(type(model).__module__.startswith("timm.") for model in timms)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnet33", "Did you mean .*resnet32"),
        (
            "torchvision:resnet19",
            "resnet19': .* network in torchvision. Did you mean",
        ),
        ("zzzzqqqq", "Try resnet32"),
        ("keras:resnet18", "no source 'keras'"),
    ],
)
def test_an_unknown_backbone_is_told_with_names_that_are_close(name, message):
    with pytest.raises(ConfigurationError, match=message):
        backbone_factory(name)


def test_pretrained_weights_are_loaded(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    stored = models.shufflenet_v2_x0_5()
    file = models.get_model_weights("shufflenet_v2_x0_5").DEFAULT.url.rpartition("/")[2]
    (tmp_path / "hub" / "checkpoints").mkdir(parents=True)
    torch.save(stored.state_dict(), tmp_path / "hub" / "checkpoints" / file)
    loaded = backbone_factory("shufflenet_v2_x0_5", pretrained=True)()
    assert torch.equal(loaded.conv1[0].weight, stored.conv1[0].weight)
    fresh = backbone_factory("shufflenet_v2_x0_5")()
    assert not torch.equal(fresh.conv1[0].weight, stored.conv1[0].weight)


def test_weights_that_cannot_be_had_are_told(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    for variable in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "")
    with pytest.raises(ConfigurationError, match="'resnet18': could not be created"):
        backbone_factory("torchvision:resnet18", pretrained=True)()
    with pytest.raises(ConfigurationError, match="has no pretrained weights"):
        backbone_factory("resnet32", pretrained=True)


# -- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--dataset mnist", "invalid choice: 'mnist'"),
        ("--dataset cifar100", "'cifar100': needs a path"),
        ("--dataset cifar100 --data no/such/folder", "no/such/folder"),
        ("--dataset folder --data .", "no folder train/"),
        ("--data .", "'digits', which comes with scikit-learn"),
        ("--phases 4", "must divide the 5 classes"),
        ("--base-classes 10", "base_classes=10"),
        ("--increments 4,3", "increments=4,3: they add up to 7 classes, must be 10"),
        ("--increments 4+6", "'4+6' must be numbers of classes separated by commas"),
        ("--increments 4,6 --phases 1", "--increments 4,6: cannot be combined with --phases"),
        ("--order no/such", "--order no/such: order 'no/such' cannot be read"),
        ("--order -1", "seed=-1"),
        ("--order 7 7", "--order 7: is given twice"),
        ("--subset podnet", "for dataset='imagenet-subset' only"),
        ("--memory-per-class 1000", "a class has only 87 training samples"),
        ("--images-per-class 5", "a class has only 5 training samples"),
        ("--memory-total 5", "total=5: must be ≥ 10"),
        ("--memory-per-class 0", "per_class=0: must be an integer ≥ 1"),
        ("--memory-per-class 5 --memory-total 50", "not allowed with"),
        ("--seed 1 --seeds 1 2", "not allowed with"),
        ("--seeds 1 1", "different from each other"),
        ("--seed -1", "must be ≥ 0"),
        ("--epochs 0", "epochs=0"),
        ("--batch-size 0", "batch_size=0"),
        ("--lr -1", "lr=-1"),
        ("--workers -1", "--workers -1"),
        ("--backbone resnet33", "Did you mean"),
        ("--backbone vgg11", "cannot process these images"),
        ("--backbone shufflenet_v2_x0_5", "on the command line --stages"),
        ("--pretrained", "no pretrained weights"),
        ("--blocks all+frozzen", "'frozzen' is not a block type"),
        ("--stem stabel", "stem='stabel'"),
        ("--alpha-lr 0", "--fixed-alpha"),
        (
            "--no-aanet --fixed-alpha --blocks all",
            "combined with --fixed-alpha, --blocks.",
        ),
        ("--preset paper", "only for cifar100"),
        ("--preset paper --dataset folder --data .", "only for cifar100"),
        ("--device nonsense", "--device nonsense"),
        ("--device meta", "--device meta: cannot be used"),
        ("--output /", "--output /: is the root of the file system"),
        ("--precision fp16 --device cpu", "needs a GPU"),
    ],
)
def test_wrong_options_end_with_a_message_before_any_training(options, message, tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        main(LUCIR(), options.split())
    assert end.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert list(tmp_path.iterdir()) == []


# -- runs ----------------------------------------------------------------------------------------


def test_a_comparison_runs_and_a_finished_one_is_only_read(tmp_path, capsys):
    options = [*TINY, "--fixed-alpha", "--upper-bound", "--output", "out", "--tensorboard"]
    results = main(LUCIR(), options)

    assert [result.arm for result in results] == [
        "plain",
        "AANets, learned α",
        "AANets, fixed α",
        "upper bound",
    ]
    assert len({tuple(result.head[0].items()) for result in map(first_only, results)}) == 1
    out = tmp_path / "out"
    names = {"accuracy.png", "accuracy.pdf", "alpha.png", "alpha.pdf"}
    names |= {"summary.md", "report.html", "costs.md", "costs.csv"}
    runs = {"plain-0", "learned-0", "fixed-0", "joint-0"}
    assert {path.name for path in out.iterdir()} == names | runs
    assert list((out / "plain-0" / "tensorboard").iterdir())
    for arm, moved in (("learned", True), ("fixed", False)):
        with open(out / f"{arm}-0" / "alpha.csv", encoding="utf-8") as file:
            assert any(row["alpha_0"] != "0.5" for row in csv.DictReader(file)) == moved
    printed = capsys.readouterr().out
    table = printed.split("\n| arm")[1:]
    assert len(table) == 3
    # The terminal says what the first paragraph of the report says.
    short = " ".join(printed[printed.index("\nAANets, learned α: ") :].split("\n\n")[0].split())
    assert f"against {results[0].head[-1]['average']:.2f}% of the plain network" in short
    assert "Alone, the stable branch knows" in short
    assert short in " ".join((out / "report.html").read_text(encoding="utf-8").split())

    stamp = (out / "plain-0" / "checkpoint" / "phase.pt").stat().st_mtime_ns
    assert main(LUCIR(), [*options, "--resume"]) == results
    assert capsys.readouterr().out.split("\n| arm")[1:] == table
    assert (out / "plain-0" / "checkpoint" / "phase.pt").stat().st_mtime_ns == stamp

    for more, message in (
        ([], "holds runs already"),
        (["--resume", "--lr", "1"], "other settings"),
    ):
        with pytest.raises(SystemExit) as end:
            main(LUCIR(), [*options, *more])
        assert end.value.code == 2
        assert message in " ".join(capsys.readouterr().err.split())


def test_orders_and_increments_of_ones_own(tmp_path, capsys):
    (tmp_path / "mine.txt").write_text("9 8 7 6 5 4 3 2 1 0")
    tiny = ["--epochs", "1", "--images-per-class", "4", "--memory-per-class", "2", "--no-aanet"]
    options = [*tiny, "--increments", "7,1,2", "--order", "1993", "mine.txt"]
    results = main(LUCIR(), options)

    assert [result.order for result in results] == ["", "ordermine"]
    assert [result.classes for result in results] == [[7, 8, 10]] * 2
    configs = [
        json.loads((tmp_path / "runs" / "lucir" / name / "config.json").read_text())["data"]
        for name in ("plain-0", "plain-0-ordermine")
    ]
    assert [config["class_order"][:3] for config in configs] == [[4, 2, 7], [9, 8, 7]]
    assert [config["increments"] for config in configs] == [[7, 1, 2]] * 2

    shutil.rmtree(tmp_path / "runs" / "lucir" / "plain-0")
    with pytest.raises(SystemExit):
        main(LUCIR(), [*options, "--resume", "--lr", "1"])
    assert "plain-0-ordermine holds a run with other settings" in capsys.readouterr().err
    assert not (tmp_path / "runs" / "lucir" / "plain-0").exists(), "found before the first run"


def first_only(result):
    """The accuracy of the first phase, which all arms share."""
    kept = [{"all": result.head[0]["all"]}]
    return dataclasses.replace(result, classes=result.classes[:1], head=kept, nearest_mean=None)


def test_several_seeds_of_the_plain_network_and_a_memory_in_total(tmp_path, capsys):
    small = ["--phases", "1", "--epochs", "1", "--images-per-class", "4", "--memory-total", "20"]
    results = main(PODNet(finetune_epochs=1), [*small, "--no-aanet", "--seeds", "3", "4"])

    assert [(result.arm, result.seed) for result in results] == [("plain", 3), ("plain", 4)]
    assert results[0].head != results[1].head
    assert not (tmp_path / "runs" / "podnet" / "alpha.png").exists()
    assert "| 2 |" in " ".join(capsys.readouterr().out.split())  # seeds of an arm


@pytest.mark.parametrize(("method", "shares"), [(LUCIR(), True), (PODNet(), False)])
def test_joint_training_starts_from_a_first_phase_like_its_own(method, shares):
    plain, joint = arms_of(method, None, upper_bound=True).values()
    assert same_start(plain, joint) == shares
    assert same_start(plain, plain)
