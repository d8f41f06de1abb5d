"""The α update: its gradient, what a step depends on, and that nothing else is touched."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

from aanets_plugin import (
    NonFiniteLossError,
    convert_to_aanet,
    levels,
)
from aanets_plugin.baselines import CifarResNet
from tests.core.alpha_setup import (
    ROUNDING,
    aanet,
    alphas,
    gradients_of,
    in_use,
    labelled,
    learned,
    loader,
    samples,
    snapshot,
    started,
    touched,
    train,
    wander,
)
from tests.networks import shake

# -- the gradient -----------------------------------------------------------------------------


VARIANTS = [
    {},
    {"stem": "paired"},
    {"blocks": ("all", "frozen")},
    {"blocks": ("all", "scaling", "frozen"), "alpha": (0.5, 0.2, 0.3)},
]


def joined_loss(model):
    """The loss on all samples at once, in eval mode: what an update differentiates."""
    x, y = samples(10)
    return F.cross_entropy(model(x), y)


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_the_gradient_is_that_of_finite_differences(variant):
    """Central differences with h = 1e-6: an error of h² from the curve, 1e-16 / h from rounding."""
    model, h = aanet(**variant), 1e-6
    loss, gradients = gradients_of(started(model), loader(4, 10))
    model.eval()
    expected = []
    with torch.no_grad():
        assert loss == pytest.approx(joined_loss(model).item(), rel=ROUNDING)
        for level in levels(model):
            slopes = []
            for branch in range(len(level.branches)):
                at = level.alpha[branch].item()
                ends = []
                for value in (at + h, at - h):
                    level.alpha[branch] = value
                    ends.append(joined_loss(model).item())
                level.alpha[branch] = at
                slopes.append((ends[0] - ends[1]) / (2 * h))
            expected.append(torch.tensor(slopes, dtype=torch.float64))
    assert all(slope.abs().max() > 1e-4 for slope in expected)
    for gradient, slope in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient, slope, rtol=1e-5, atol=1e-8)
    for gradient, slope in zip(gradients, [*expected[1:], expected[0]], strict=True):
        assert not torch.allclose(gradient, slope, rtol=1e-2, atol=1e-8)  # another level's


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_the_gradient_is_that_of_alpha_as_an_ordinary_leaf(variant):
    model = aanet(**variant)
    reference = copy.deepcopy(model).eval()
    leaves = []
    for level in levels(reference):
        level.alpha = level.alpha.clone().requires_grad_()
        leaves.append(level.alpha)
    joined_loss(reference).backward()
    expected = torch.cat([leaf.grad for leaf in leaves])
    gradients = torch.cat(gradients_of(started(model), loader(4, 10))[1])
    torch.testing.assert_close(gradients, expected, rtol=ROUNDING, atol=1e-12)
    other = torch.cat(gradients_of(started(model), loader(4, 8))[1])
    assert not torch.allclose(other, expected, rtol=1e-3)  # other data, another gradient


def test_an_update_without_normalization_is_equation_8():
    """α - γ · (gradient without its mean), since a step along the sum would be projected away."""
    model = aanet()
    before, lr = alphas(model), 0.05
    bilevel = started(model, lr=lr, normalize=False)
    _, gradients = gradients_of(bilevel, loader())
    bilevel.after_epoch(loader())
    expected = before - lr * torch.cat([g - g.mean() for g in gradients])
    torch.testing.assert_close(alphas(model), expected, rtol=0, atol=1e-14)
    assert (expected - before).abs().min() > 1e-6


def test_the_returned_loss_is_the_one_before_the_update():
    model = aanet()
    model.eval()
    x, y = samples()
    before = F.cross_entropy(model(x), y).item()
    bilevel = started(model)
    assert bilevel.after_epoch(loader()) == pytest.approx(before, rel=ROUNDING)
    after = F.cross_entropy(model(x), y).item()
    assert bilevel.after_epoch(loader()) == pytest.approx(after, rel=ROUNDING)
    assert after != pytest.approx(before, rel=1e-6)
    assert [r.loss for r in bilevel.history] == pytest.approx([before] * 3 + [after] * 3)


def test_branches_that_are_still_the_same_give_no_direction():
    """Right after the base is frozen; the control is a network whose branches have moved apart."""
    model = convert_to_aanet(shake(CifarResNet(1, 5)).double())
    assert torch.equal(learned(loader(), model=model), torch.full((6,), 0.5).double())
    assert (learned(loader(), model=wander(model)) - 0.5).abs().min() > 1e-3


# -- nothing but alpha ------------------------------------------------------------------------


def noisy(model, batch):
    return labelled(model, batch) * (1 + 0.1 * torch.rand(()))


def failing(model, batch):
    labelled(model, batch)
    torch.rand(3)
    raise RuntimeError("the host's loss failed")


@pytest.mark.parametrize("blocks", [("all", "scaling"), ("all", "frozen")], ids="+".join)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_an_update_changes_alpha_alone(blocks, momentum):
    model = in_use(blocks=blocks)
    bilevel = started(model, momentum=momentum, loss_fn=noisy)
    before, alpha = snapshot(model), alphas(model)
    bilevel.after_epoch(loader())
    bilevel.after_epoch(loader())
    assert touched(model, before) == []
    assert not torch.equal(alphas(model), alpha)


def test_a_training_step_touches_what_an_update_leaves_alone():
    """The control for the snapshot."""
    model = in_use()
    before = snapshot(model)
    torch.rand(1)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1))
    model.fc.requires_grad_(True)
    levels(model)[0].alpha.requires_grad_(True)
    assert touched(model, before) == sorted(before)


@pytest.mark.parametrize("loss_fn", [failing, lambda m, b: labelled(m, b) * float("nan")])
def test_everything_is_given_back_when_an_update_fails(loss_fn):
    model = in_use()
    bilevel = started(model, loss_fn=loss_fn)
    before, alpha = snapshot(model), alphas(model)
    with pytest.raises((RuntimeError, NonFiniteLossError)):
        bilevel.after_epoch(loader())
    assert touched(model, before) == []
    assert torch.equal(alphas(model), alpha)


def test_everything_is_given_back_when_the_loader_fails():
    def breaking():
        yield from loader()
        raise OSError("the disk failed")

    model = in_use()
    bilevel, before, alpha = started(model), snapshot(model), alphas(model)
    with pytest.raises(OSError, match="disk"):
        bilevel.after_epoch(breaking())
    assert touched(model, before) == []
    assert torch.equal(alphas(model), alpha)


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_data_loader_leaves_the_random_state_as_it_was(shuffle):
    model = in_use()
    data = DataLoader(TensorDataset(*samples()), batch_size=4, shuffle=shuffle)
    bilevel, before = started(model), snapshot(model)
    bilevel.after_epoch(data)
    assert touched(model, before) == []


def graph_leaves(loss):
    """Every tensor that a backward from `loss` would give a gradient."""
    found, seen, todo = [], set(), [loss.grad_fn]
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.append(node.variable)
        todo += [parent for parent, _ in node.next_functions]
    return {id(leaf) for leaf in found}


def test_no_gradient_of_anything_but_alpha_is_computed():
    model, inside = aanet(), []

    def watching(model, batch):
        loss = labelled(model, batch)
        inside.append(graph_leaves(loss))
        return loss

    fired = []
    for parameter in model.parameters():
        parameter.register_hook(fired.append)
        parameter.register_post_accumulate_grad_hook(fired.append)
    started(model, loss_fn=watching).after_epoch(loader())
    assert inside == [{id(level.alpha) for level in levels(model)}] * 2
    assert fired == []
    outside = labelled(model, samples())
    assert graph_leaves(outside) == {id(p) for p in model.parameters()}  # the control
    outside.backward()
    assert len(fired) == 2 * len(list(model.parameters()))


def test_the_loss_sees_the_model_in_eval_mode():
    seen = []

    def watching(model, batch):
        seen.extend(module.training for module in model.modules())
        return labelled(model, batch)

    model = aanet().train()
    started(model, loss_fn=watching).after_epoch(loader())
    assert seen
    assert not any(seen)
    assert all(module.training for module in model.modules())


def test_an_update_works_under_no_grad():
    expected = learned(loader())
    with torch.no_grad():
        actual = learned(loader())
        assert not torch.is_grad_enabled()
    assert torch.equal(actual, expected)
    assert torch.is_grad_enabled()


# -- what a step depends on -------------------------------------------------------------------


def test_alpha_does_not_depend_on_the_batch_size():
    """5 leaves a last batch of 3, so that a mean of batch means would weigh its samples more."""
    whole = learned(loader(28, 28))
    for size in (4, 5, 7):
        torch.testing.assert_close(learned(loader(size, 28)), whole, rtol=0, atol=ROUNDING)
    assert (learned(loader(7, 14)) - whole).abs().max() > 1e-4  # half the data, another α


def test_samples_and_not_batches_weigh_the_same():
    """The control for the last batch: the mean over batches is another gradient."""
    batches = loader(5, 28)
    bilevel = started(aanet())
    whole = torch.cat(gradients_of(bilevel, batches)[1])
    by_batch = torch.stack([torch.cat(gradients_of(bilevel, [batch])[1]) for batch in batches])
    weights = torch.tensor([5, 5, 5, 5, 5, 3], dtype=torch.float64)[:, None] / 28
    torch.testing.assert_close((weights * by_batch).sum(0), whole, rtol=ROUNDING, atol=1e-13)
    assert not torch.allclose(by_batch.mean(0), whole, rtol=1e-4)


@pytest.mark.parametrize("normalize", [True, False])
def test_only_a_normalized_step_ignores_the_scale_of_the_loss(normalize):
    """lr so small that no plain step reaches the end of the simplex."""
    options = {"normalize": normalize, "lr": 0.05 if normalize else 1e-4, "momentum": 0.5}
    plain = learned(loader(), **options)
    scaled = learned(loader(), loss_fn=lambda m, b: 1000 * labelled(m, b), **options)
    assert torch.allclose(plain, scaled, rtol=0, atol=ROUNDING) is normalize


def test_the_first_step_has_the_length_lr_and_a_new_phase_goes_on_with_shorter_ones():
    lengths = {}
    for updates in ((6,), (3, 3)):  # six in one phase, or three in each of two
        model = aanet()
        bilevel = started(model, lr=0.02)
        lengths[updates] = []
        for number in updates:
            for _ in range(number):
                before = alphas(model).view(3, 2)
                bilevel.after_epoch(loader())
                lengths[updates].append((alphas(model).view(3, 2) - before).norm(dim=1).tolist())
            before = alphas(model)
            bilevel.end_phase()
            bilevel.begin_phase()
            assert torch.equal(alphas(model), before)
    first, *later = lengths[3, 3]
    assert first == pytest.approx([0.02] * 3, rel=1e-9)
    assert all(length < 0.019 for step in later for length in step)
    assert lengths[3, 3] == lengths[6,]


def test_max_batches_is_where_an_update_stops_reading():
    def endless():
        yield from loader(4, 8)
        raise AssertionError("the third batch was read")

    expected = learned(loader(4, 8), updates=1, normalize=False)
    model = aanet()
    started(model, normalize=False, max_batches=2).after_epoch(endless())
    assert torch.equal(alphas(model), expected)
    longer = learned(loader(4, 12), updates=1, normalize=False, max_batches=2)
    assert torch.equal(longer, expected)
    assert not torch.equal(learned(loader(4, 12), updates=1, normalize=False), expected)


def test_a_schedule_multiplies_lr_by_the_epoch_of_the_phase():
    halved = learned(loader(), updates=1, normalize=False, schedule=lambda epoch: 0.5, lr=0.1)
    assert torch.equal(halved, learned(loader(), updates=1, normalize=False, lr=0.05))
    assert not torch.equal(halved, learned(loader(), updates=1, normalize=False, lr=0.1))


def test_a_schedule_starts_anew_with_each_phase():
    asked = []
    model = aanet()
    bilevel = started(model, schedule=lambda epoch: asked.append(epoch) or float(epoch == 0))
    asked.clear()  # the settings were checked with epoch 0
    for _ in range(2):
        before = alphas(model)
        bilevel.after_epoch(loader())
        first = alphas(model)
        assert not torch.equal(first, before)
        bilevel.after_epoch(loader())
        assert torch.allclose(alphas(model), first, rtol=0, atol=1e-14)
        bilevel.end_phase()
        bilevel.begin_phase()
    assert set(asked) == {0, 1}
    assert asked == sorted(asked[: len(asked) // 2]) * 2


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("blocks", [("all", "scaling"), ("all", "scaling", "frozen")], ids="+".join)
def test_alpha_stays_in_the_simplex_under_steps_that_are_far_too_large(blocks, normalize):
    model = aanet(torch.float32, blocks=blocks)
    bilevel = started(model, lr=50.0, momentum=0.9, normalize=normalize)
    x, _ = samples(dtype=torch.float32)
    for update in range(12):
        bilevel.after_epoch([(x, (torch.arange(8) + update) % 5)])
    for record in bilevel.history:
        assert all(0 <= weight <= 1 for weight in record.weights)
        assert abs(sum(record.weights) - 1) < 1e-6  # float32
    assert any(0.0 in record.weights for record in bilevel.history)  # the projection had work
