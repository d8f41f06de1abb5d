"""Which runs the paper's tables and figures consist of, against the paper's text."""

from __future__ import annotations

import numpy as np
import pytest

from aanets_plugin import ConfigurationError
from aanets_plugin.baselines import LUCIR, PODNet
from aanets_plugin.experiments.paper.cells import Grid
from aanets_plugin.experiments.paper.figures import FIGURES
from aanets_plugin.experiments.paper.grids import TABLES
from aanets_plugin.experiments.paper.scales import scale_of


@pytest.fixture(scope="module")
def cifar(tmp_path_factory):
    """A folder that looks like CIFAR-100."""
    folder = tmp_path_factory.mktemp("cifar100")
    for part in ("train", "test"):
        y = np.repeat(np.arange(100), 2)
        np.savez(folder / f"{part}.npz", x=np.zeros((200, 32, 32, 3), np.uint8), y=y)
    return folder


def grid(cifar, table, *, scale="paper", rows=None, phases=(5, 10, 25), seeds=(0, 1, 2)):
    chosen = TABLES[table].chosen(rows)
    return Grid(scale_of("cifar100", scale), chosen, phases, seeds, output=cifar, data=cifar)


def settings_of(found, table):
    """The settings of each row."""
    return {row.key: found.settings(row) for row in TABLES[table].rows if row.method}


def test_every_run_has_the_training_of_section_4_1(cifar):
    """160 epochs in each phase, divided by 10 after 80 and 120, batches of 128, 20 exemplars, half
    of the classes first, three runs."""
    plans = grid(cifar, "2").plans
    assert len(plans) == 4 * 2 * 3 * 3
    for plan in plans:
        training = plan.settings.training
        assert [training.epochs_of(0), training.epochs_of(1)] == [160, 160]
        assert training.milestones == (0.5, 0.75)
        assert plan.settings.memory.per_class == 20
        assert plan.increments[0] == 50
        assert set(plan.increments[1:]) in ({10}, {5}, {2})
    lucir = next(plan for plan in plans if plan.name.startswith("lucir"))
    assert lucir.settings.training.batch_size == 128
    assert lucir.settings.training.lr == 0.1
    net = lucir.settings.backbone()
    assert (len(net.layer1), net.conv1.out_channels) == (5, 16)  # ResNet-32


def test_table_1(cifar):
    """Rows 3 to 8 learn α, but for row 7; row 6 on imbalanced data; row 8 has 14 exemplars."""
    settings = settings_of(grid(cifar, "1"), "1")
    assert settings["1"].aanets is None
    blocks = {row: found.aanets.blocks for row, found in settings.items() if found.aanets}
    assert blocks == {
        "2": ("all", "all"),
        "3": ("all", "scaling"),
        "4": ("all", "frozen"),
        "5": ("scaling", "frozen"),
        "6": ("all", "scaling"),
        "7": ("all", "scaling"),
        "8": ("all", "scaling"),
    }
    learned = {row for row in blocks if settings[row].aanets.lr > 0}
    assert learned == {"3", "4", "5", "6", "8"}
    assert {row for row in blocks if not settings[row].aanets.balanced} == {"6"}
    exemplars = {row: found.memory.per_class for row, found in settings.items()}
    assert exemplars == {**dict.fromkeys("1234567", 20), "8": 14}
    assert {found.method.name for found in settings.values()} == {"lucir"}


def test_table_2_and_s2(cifar):
    """Four methods; under the strict budget AANets have 13 exemplars (supplement B)."""
    settings = settings_of(grid(cifar, "2"), "2")
    assert len(settings) == 8
    assert len({found.method.name for found in settings.values()}) == 4
    assert [row.key for row in TABLES["2"].rows if row.method is None] == ["lwf", "bic", "tpcil"]
    strict = settings_of(grid(cifar, "s2"), "s2")
    exemplars = {key.split("-")[1]: found.memory.per_class for key, found in strict.items()}
    assert exemplars == {"plain": 20, "learned": 20, "strict": 13}
    assert len(strict) == 12


def test_the_strict_budgets_of_the_other_datasets():
    assert scale_of("imagenet-subset", "paper").strict == {"1": 17, "supplement": 16}
    assert scale_of("imagenet", "paper").strict["supplement"] == 19
    assert scale_of("imagenet", "paper").training.epochs == 90


def test_imagenet_has_the_recipe_of_each_methods_authors(tmp_path):
    scale = scale_of("imagenet", "paper")
    (podnet, method), (lucir, _) = (scale.configured(m()) for m in (PODNet, LUCIR))
    assert (podnet.training.batch_size, podnet.training.lr) == (64, 0.05)
    assert (method.flat_weight, method.spatial_weight) == (10, 8)
    assert (lucir.training.batch_size, lucir.training.lr) == (128, 0.1)


def test_table_s1(cifar):
    """N=25 means 100 classes evenly in 25 phases; the AANets have the strict budget."""
    found = grid(cifar, "s1", seeds=[0], phases=[25])
    phases = {plan.name: plan.increments for plan in found.plans}
    assert phases["lucir-plain-E25-seed0"] == (4,) * 25
    assert phases["lucir-strict13-N25-seed0"] == (50, *[2] * 25)
    settings = settings_of(found, "s1")
    assert settings["equal-update_base"].aanets.update_base
    assert not settings["equal-strict"].aanets.update_base
    exemplars = [found.memory.per_class for found in settings.values()]
    assert exemplars == [20, 13, 20, 13, 13]
    assert TABLES["s1"].metric == "all"


def test_table_s3(cifar):
    settings = settings_of(grid(cifar, "s3"), "s3")
    branches = {
        row: "+".join(found.aanets.blocks) for row, found in settings.items() if found.aanets
    }
    assert branches == {
        "2": "all+all",
        "3": "all+all+all+all",
        "4": "scaling",
        "5": "scaling+scaling",
        "6": "scaling+scaling+scaling+scaling",
        "7": "all+scaling",
        "8": "all+frozen",
        "9": "scaling+frozen",
    }


def test_costs_are_those_of_the_paper(cifar):
    """Memory in MB within 1% of Table 1; parameters and FLOPs are tested with `profile`."""
    found = grid(cifar, "1")
    for key, memory in {"1": 7.64, "2": 9.43, "4": 9.43}.items():
        (row,) = TABLES["1"].chosen([key])
        assert found.cost(row).memory / 2**20 == pytest.approx(memory, rel=0.01)


def test_the_small_scale_is_that_of_benchmarks_accuracy(cifar):
    scale = scale_of("cifar100", "small")
    training = scale.training
    assert [training.epochs_of(0), training.epochs, training.batch_size] == [30, 5, 64]
    assert (training.schedule, scale.backbone, scale.images_per_class) == (
        "cosine",
        "resnet20",
        200,
    )
    strict = grid(cifar, "1", scale="small", rows=["8"], phases=[5], seeds=[0])
    assert [plan.name for plan in strict.plans] == ["lucir-strict16-N5-seed0"]


def test_tables_share_their_runs_and_runs_their_first_phase(cifar):
    first, second = (grid(cifar, name, seeds=[0]).plans for name in ("1", "2"))
    both = {plan.name for plan in first} & {plan.name for plan in second}
    assert len(both) == 2 * 3  # LUCIR, with and without AANets
    lucir = {plan.first_phase for plan in first}
    assert len(lucir) == 1
    assert len({plan.first_phase for plan in second}) == 2  # PODNet has another head
    other_seed = grid(cifar, "1", seeds=[1], rows=["1"]).plans[0]
    assert other_seed.first_phase not in lucir
    equal = grid(cifar, "s1", seeds=[0], rows=["equal-plain"]).plans
    assert len({plan.first_phase for plan in equal}) == 3


def test_figures_show_the_phases_of_the_paper():
    """Figure 4: N=10; S3 and S4: N=5 and 25; S2: all, with the upper bound."""
    scale = scale_of("cifar100", "paper")
    shown = {name: figure.phases(scale) for name, figure in FIGURES.items()}
    assert shown == {"4": [10], "s2": [5, 10, 25], "s3": [5, 25], "s4": [5, 25]}
    assert FIGURES["s2"].rows[-1].method == "joint"


@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (lambda: TABLES["1"].chosen(["12"]), r"row '12': must be one of .* 1, 2, 3"),
        (lambda: TABLES["1"].check("imagenet"), "table 1: the paper has none for imagenet, only"),
        (lambda: scale_of("digits", "paper"), "scale 'paper' of dataset 'digits'"),
        (lambda: scale_of("folder"), "dataset 'folder': the tables are of digits"),
        (lambda: FIGURES["s4"].check("cifar100"), "figure s4: the paper has none for cifar100"),
        (lambda: scale_of("digits").increments(10, 3, equal=True), "phases 3: cannot be equal"),
        (lambda: scale_of("digits").increments(10, 12), "phases 12: must be at most 9"),
    ],
)
def test_bad_input(attempt, message):
    with pytest.raises(ConfigurationError, match=message):
        attempt()


@pytest.mark.parametrize("seeds", [[], [0, 0], [-1]])
def test_seeds_must_differ(cifar, seeds):
    with pytest.raises(ConfigurationError, match=r"seeds .*: must be ≥ 0 and different"):
        grid(cifar, "1", seeds=seeds)
