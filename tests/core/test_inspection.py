"""branch_report: each branch alone, against a reference that is built by hand."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from aanets_plugin import (
    ConfigurationError,
    PhaseError,
    UnsupportedModelError,
    branch_report,
    convert_to_aanet,
    levels,
    thaw_base,
)
from aanets_plugin.baselines import resnet20

PHASES = [[0, 1, 2], [3, 4]]


def converted(**options):
    """A model whose branches differ, with the learned α 0.3, 0.5, 0.8 in its levels."""
    torch.manual_seed(0)
    model = convert_to_aanet(resnet20(num_classes=6), **options)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
        for level, plastic in zip(levels(model), (0.3, 0.5, 0.8), strict=True):
            if len(level.alpha) == 2:
                level.alpha.copy_(torch.tensor([plastic, 1 - plastic]))
    return model.eval().double()


@pytest.fixture
def model():
    return converted()


@pytest.fixture
def batches():
    torch.manual_seed(1)
    return [(torch.randn(n, 3, 16, 16).double(), torch.randint(0, 5, (n,))) for n in (7, 5)]


def by_hand(model, batches, alone):
    """Slow and obvious: a copy in which these levels are replaced by one of their branches."""
    model = copy.deepcopy(model)
    for name, branch in alone.items():
        setattr(model, name, getattr(model, name).branches[branch])
    x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
    with torch.no_grad():
        logits = model(x)[:, :5]  # class 5 is in no phase
    correct = logits.argmax(1) == y
    parts = [correct[torch.isin(y, torch.tensor(classes))] for classes in PHASES]
    accuracies = [100 * part.float().mean().item() for part in (correct, *parts)]
    return accuracies, F.cross_entropy(logits, y).item()


def test_each_row_is_the_model_with_these_branches_alone(model, batches):
    rows = {row.name: row for row in branch_report(model, batches, phases=PHASES).rows}
    names = ("layer1", "layer2", "layer3")
    expected = {"α as learned": {}}
    for number, branch in enumerate(("plastic", "stable")):
        expected[f"{branch} alone"] = dict.fromkeys(names, number)
        for name in names:
            expected[f"{branch} alone in {name}"] = {name: number}
    assert set(rows) == set(expected)
    losses = set()
    for name, alone in expected.items():
        accuracies, loss = by_hand(model, batches, alone)
        row = rows[name]
        assert [row.accuracy, *row.by_phase] == pytest.approx(accuracies, abs=1e-4)
        assert row.loss == pytest.approx(loss, abs=1e-10)
        losses.add(round(loss, 8))
    assert len(losses) == len(expected), "the control: every row is another network"


def test_shares_are_those_of_the_weighted_norms(model, batches):
    x = torch.cat([x for x, _ in batches])
    seen = {}
    for number, branch in enumerate(model.layer1.branches):
        branch.register_forward_hook(lambda _, __, out, n=number: seen.update({n: out}))
    with torch.no_grad():
        model(x)
    plastic, stable = (
        weight * seen[number].flatten(1).norm(dim=1).sum()
        for number, weight in enumerate(model.layer1.alpha)
    )
    share = branch_report(model, batches).shares["layer1"]
    assert share[0] == pytest.approx((plastic / (plastic + stable)).item(), abs=1e-5)
    assert sum(share) == pytest.approx(1)
    assert abs(share[0] - 0.5) > 0.01, "the control"


def test_the_model_stays_as_it_was(model, batches):
    model.train()
    model.layer2.eval()
    before = copy.deepcopy(model.state_dict())
    modes = [module.training for module in model.modules()]
    alphas = [level.alpha for level in levels(model)]
    state = torch.get_rng_state()
    branch_report(model, batches)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert [module.training for module in model.modules()] == modes
    assert all(level.alpha is alpha for level, alpha in zip(levels(model), alphas, strict=True))
    assert torch.equal(torch.get_rng_state(), state)
    assert not any(branch._forward_hooks for level in levels(model) for branch in level.branches)


def test_a_failing_forward_leaves_alpha_and_no_hook(model, batches):
    alphas = [level.alpha for level in levels(model)]
    with pytest.raises(RuntimeError):
        branch_report(
            model, [batches[0], (torch.randn(2, 1, 16, 16).double(), torch.zeros(2).long())]
        )
    assert all(level.alpha is alpha for level, alpha in zip(levels(model), alphas, strict=True))
    assert not any(branch._forward_hooks for level in levels(model) for branch in level.branches)


def test_one_branch_has_one_row_and_three_have_a_name_each(batches):
    assert len(branch_report(converted(blocks=("scaling",)), batches).rows) == 1
    report = branch_report(converted(blocks=("all", "scaling", "frozen")), batches)
    assert report.branches == ("plastic", "branch 1", "stable")
    assert len(report.rows) == 1 + 3 + 9


def test_a_paired_stem_gives_each_branch_its_own_input(batches):
    rows = branch_report(converted(stem="paired"), batches, phases=PHASES).rows
    assert len({round(row.loss, 8) for row in rows}) == len(rows)


def test_table_and_figure_have_all_of_it(model, batches, tmp_path):
    report = branch_report(nn.DataParallel(model), batches, phases=[*PHASES, [5]])
    text = str(report)
    for row in report.rows:
        assert f"| {row.name} | {row.accuracy:.2f} | {row.loss:.3f} |" in text
        assert row.by_phase[2] is None, "no sample of class 5"
    assert "| layer3 | " in text
    pytest.importorskip("matplotlib")
    figure = report.plot(tmp_path / "branches.png")
    assert (tmp_path / "branches.png").stat().st_size > 1000
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["α as learned", "plastic alone", "stable alone"]


def test_what_cannot_be_measured_is_refused(model, batches):
    with pytest.raises(UnsupportedModelError, match="convert_to_aanet"):
        branch_report(resnet20(), batches)
    with pytest.raises(ConfigurationError, match="no batch"):
        branch_report(model, [])
    with pytest.raises(ConfigurationError, match="class 1 is in phase 0 and in phase 1"):
        branch_report(model, batches, phases=[[0, 1], [1, 2]])
    with pytest.raises(ConfigurationError, match="label 3, which is in none of the phases"):
        branch_report(model, batches, phases=[[0, 1, 2], [4]])
    with pytest.raises(ConfigurationError, match="must name the classes"):
        branch_report(model, batches, phases=[])
    thaw_base(model)
    with pytest.raises(PhaseError, match="base phase"):
        branch_report(model, batches)
