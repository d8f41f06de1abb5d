"""Learned exemplars: their gradient against finite differences, and a host that stays as it was."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from aanets_plugin import convert_to_aanet
from aanets_plugin.baselines import (
    CifarResNet,
    exemplar_gradient,
    finetune_on_exemplars,
    refine_exemplars,
)
from aanets_plugin.errors import ConfigurationError
from tests.networks import shake


class Net(nn.Module):
    """Smooth, so that finite differences are meaningful; BatchNorm, so that there are buffers."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3, padding=1)
        self.bn = nn.BatchNorm2d(2)
        self.fc = nn.Linear(2, 3)

    def forward(self, x):
        return self.fc(torch.tanh(self.bn(self.conv(x))).mean((2, 3)))


LABELS = torch.tensor([0, 1, 2])


def problem():
    """A network in float64, exemplars [3, 1, 3, 3], a validation batch."""
    model = shake(Net().double())
    return model, *torch.randn(2, 3, 1, 3, 3, dtype=torch.float64)


def literal_loss(model, images, batch, inner_lr, inner_steps, head):
    """Fine-tune a real copy by hand, then look at the validation loss."""
    model = copy.deepcopy(model).eval()
    learned = list((model if head is None else model.get_submodule(head)).parameters())
    for _ in range(inner_steps):
        slopes = torch.autograd.grad(F.cross_entropy(model(images), LABELS), learned)
        with torch.no_grad():
            for parameter, slope in zip(learned, slopes, strict=True):
                parameter.sub_(inner_lr * slope)
    return F.cross_entropy(model(batch[0]), batch[1]).item()


def finite_differences(model, images, batch, *options, step=1e-5):
    gradient = torch.zeros_like(images)
    for i in range(images.numel()):
        moved = []
        for sign in (1, -1):
            other = images.clone()
            other.view(-1)[i] += sign * step
            moved.append(literal_loss(model, other, batch, *options))
        gradient.view(-1)[i] = (moved[0] - moved[1]) / (2 * step)
    return gradient


def snapshot(model):
    return {
        "tensors": {k: v.clone() for k, v in model.state_dict().items()},
        "identities": [id(t) for t in (*model.parameters(), *model.buffers())],
        "gradients": [None if p.grad is None else p.grad.clone() for p in model.parameters()],
        "requires": [p.requires_grad for p in model.parameters()],
        "modes": [module.training for module in model.modules()],
    }


def assert_same(model, before):
    after = snapshot(model)
    assert after["tensors"].keys() == before["tensors"].keys()
    assert all(torch.equal(after["tensors"][k], v) for k, v in before["tensors"].items())
    for now, then in zip(after["gradients"], before["gradients"], strict=True):
        assert now is then is None or torch.equal(now, then)
    for key in ("identities", "requires", "modes"):
        assert after[key] == before[key]


@pytest.mark.parametrize("head", ["fc", None])
@pytest.mark.parametrize("inner_steps", [1, 3])
def test_the_gradient_is_that_of_the_fine_tuned_network(head, inner_steps):
    model, images, x = problem()
    batch = (x, LABELS)
    gradient, loss = exemplar_gradient(
        model, images, LABELS, batch, inner_lr=0.5, inner_steps=inner_steps, head=head
    )
    options = (0.5, inner_steps, head)
    assert loss == pytest.approx(literal_loss(model, images, batch, *options), abs=1e-12)
    expected = finite_differences(model, images, batch, *options)
    # Central differences of step 1e-5: 1e-10 from the step, 1e-11 from rounding.
    torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-8)
    # The control: one inner step more is another gradient, by far more than the tolerance.
    other = finite_differences(model, images, batch, 0.5, inner_steps + 1, head)
    assert (gradient - other).abs().max() > 1e-4


def test_the_gradient_needs_the_way_through_the_weights():
    """Without inner learning, the validation loss does not know of the exemplars."""
    model, images, x = problem()
    tiny, _ = exemplar_gradient(model, images, LABELS, (x, LABELS), inner_lr=1e-9)
    usual, _ = exemplar_gradient(model, images, LABELS, (x, LABELS), inner_lr=0.5)
    assert tiny.abs().max() < 1e-7 < usual.abs().max()


@pytest.mark.parametrize("head", ["fc", None])
@pytest.mark.parametrize("training", [True, False])
def test_the_host_stays_as_it_was(head, training):
    model, images, x = problem()
    model.train(training)
    model.bn.training = not training  # flags of its own
    F.cross_entropy(model(x), LABELS).backward()  # gradients of its own
    before, given = snapshot(model), images.clone()
    refined = refine_exemplars(
        model, images, LABELS, [(x, LABELS)], steps=2, inner_lr=0.5, head=head
    )
    assert_same(model, before)
    assert torch.equal(images, given)
    assert not images.requires_grad
    assert not refined.requires_grad
    assert not torch.equal(refined, given)


def test_the_host_stays_as_it_was_after_an_error():
    model, images, x = problem()
    before = snapshot(model.train())
    with pytest.raises(ZeroDivisionError):
        refine_exemplars(model, images, LABELS, [(x, LABELS)], loss_fn=lambda *_: 1 / 0)
    assert_same(model, before)


def test_a_converted_model_stays_as_it_was_and_teaches_its_exemplars():
    model = convert_to_aanet(CifarResNet(1, 3))
    images, x = torch.randn(2, 3, 3, 8, 8)
    before = snapshot(model.train())
    refined = refine_exemplars(model, images, LABELS, [(x, LABELS)], steps=1, lr=10.0)
    assert_same(model, before)
    assert not torch.equal(refined, images)


def test_refining_lowers_the_loss_of_a_network_fine_tuned_on_the_exemplars():
    model, images, x = problem()
    options = {"inner_lr": 0.5, "inner_steps": 2}
    batch = (x, LABELS)
    refined = refine_exemplars(model, images, LABELS, [batch], steps=20, lr=0.05, **options)
    before = literal_loss(model, images, batch, 0.5, 2, "fc")
    assert literal_loss(model, refined, batch, 0.5, 2, "fc") < before - 0.01
    away = 2 * images - refined  # the control: as far in the other direction
    assert literal_loss(model, away, batch, 0.5, 2, "fc") > before


def test_a_step_is_sgd_with_momentum_on_the_images():
    model, images, x = problem()
    batches = [(x, LABELS), (x.flip(0), LABELS)]
    pixels = images.clone().requires_grad_()
    optimizer = torch.optim.SGD([pixels], lr=0.3, momentum=0.9)
    for step in range(3):  # the third batch is the first one again
        pixels.grad, _ = exemplar_gradient(
            model, pixels.detach(), LABELS, batches[step % 2], inner_lr=0.5
        )
        optimizer.step()
    options = {"steps": 3, "lr": 0.3, "inner_lr": 0.5, "inner_steps": 1, "normalize": False}
    refined = refine_exemplars(model, images, LABELS, batches, **options)
    torch.testing.assert_close(refined, pixels.detach(), rtol=0, atol=1e-14)
    plain = refine_exemplars(model, images, LABELS, batches, momentum=0.0, **options)
    assert not torch.allclose(plain, refined, rtol=0, atol=1e-8)


def test_a_normalized_step_moves_every_image_by_the_learning_rate_along_its_gradient():
    model, images, x = problem()
    batch, options = (x, LABELS), {"inner_lr": 1e-4}
    refined = refine_exemplars(model, images, LABELS, [batch], steps=1, lr=0.01, **options)
    moved = (images - refined).flatten(1)
    torch.testing.assert_close(
        moved.square().mean(dim=1).sqrt(), torch.full((len(images),), 0.01).to(images)
    )
    gradient, _ = exemplar_gradient(model, images, LABELS, batch, **options)
    assert torch.cosine_similarity(moved, gradient.flatten(1)).min() > 1 - 1e-9

    options["normalize"] = False
    plain = refine_exemplars(model, images, LABELS, [batch], steps=1, lr=0.01, **options)
    assert (images - plain).abs().max() < 1e-6  # which no 8-bit image would show


def test_pixels_stay_within_their_bounds():
    model, images, x = problem()
    low = torch.full((1, 1, 1), -0.2)
    bounds = (low, 0.3)
    refined = refine_exemplars(
        model, images, LABELS, [(x, LABELS)], steps=2, lr=5.0, inner_lr=0.5, bounds=bounds
    )
    assert refined.dtype == images.dtype
    assert low.double().item() <= refined.min()
    assert refined.max() <= 0.3
    free = refine_exemplars(model, images, LABELS, [(x, LABELS)], steps=2, lr=5.0, inner_lr=0.5)
    assert free.max() > 0.3


def test_a_batch_of_exemplars_moves_those_alone_and_by_its_seed():
    model, images, x = problem()

    def refined(seed):
        generator = torch.Generator().manual_seed(seed)
        return refine_exemplars(
            model, images, LABELS, [(x, LABELS)], steps=1, batch_size=1, generator=generator
        )

    moved = (refined(0) != images).flatten(1).any(dim=1)
    assert moved.sum() == 1
    assert torch.equal(refined(0), refined(0))
    assert any(not torch.equal(refined(0), refined(seed)) for seed in range(1, 6))


def test_all_exemplars_at_once_draw_no_random_number():
    model, images, x = problem()
    before = torch.get_rng_state()
    refine_exemplars(model, images, LABELS, [(x, LABELS)], steps=1)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_loader_a_dict_of_logits_and_no_grad_around_it_will_do():
    model, images, x = problem()
    plain = refine_exemplars(model, images, LABELS, [(x, LABELS)], steps=2)
    model.register_forward_hook(lambda _, args, output: {"logits": output})
    loader = DataLoader(TensorDataset(x, LABELS), batch_size=3)
    with torch.no_grad():
        refined = refine_exemplars(model, images, LABELS, loader, steps=2)
    assert torch.equal(refined, plain)


def test_fine_tuning_learns_the_exemplars_and_gives_back_flags_and_gradients():
    model, images, x = problem()
    model.eval()
    F.cross_entropy(model(x), LABELS).backward()
    before = snapshot(model)
    first = finetune_on_exemplars(model, images, LABELS, epochs=1, lr=0.1)
    last = finetune_on_exemplars(model, images, LABELS, epochs=30, lr=0.1)
    after = snapshot(model)
    assert last < first - 0.1
    assert all(
        torch.equal(a, b) for a, b in zip(after["gradients"], before["gradients"], strict=True)
    )
    assert after["modes"] == before["modes"]
    assert not torch.equal(after["tensors"]["conv.weight"], before["tensors"]["conv.weight"])


def test_fine_tuning_the_head_leaves_the_rest_to_the_bit():
    model, images, _ = problem()
    before = snapshot(model)
    finetune_on_exemplars(model, images, LABELS, epochs=2, lr=0.1, batch_size=2, head="fc")
    changed = {k for k, v in model.state_dict().items() if not torch.equal(v, before["tensors"][k])}
    assert changed == {"fc.weight", "fc.bias"}
    assert [module.training for module in model.modules()] == before["modes"]


def test_fine_tuning_is_the_plain_loop():
    model, images, _ = problem()
    before = model.fc.weight.detach().clone()
    other = copy.deepcopy(model).train()
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(other(images), LABELS).backward()
        optimizer.step()
    finetune_on_exemplars(model, images, LABELS, epochs=3, lr=0.1)
    # The order of the samples in the batch is another one: rounding only.
    for a, b in zip(model.state_dict().values(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
    assert not torch.allclose(model.fc.weight, before, rtol=0, atol=1e-3)


def test_an_error_in_fine_tuning_leaves_flags_and_gradients():
    model, images, x = problem()
    model.bn.requires_grad_(False)
    F.cross_entropy(model(x), LABELS).backward()
    before = snapshot(model)
    flags = [parameter.requires_grad for parameter in model.parameters()]

    def fails(outputs, labels):
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        finetune_on_exemplars(model, images, LABELS, head="fc", loss_fn=fails)
    assert [parameter.requires_grad for parameter in model.parameters()] == flags
    assert [module.training for module in model.modules()] == before["modes"]
    pairs = zip(snapshot(model)["gradients"], before["gradients"], strict=True)
    assert all(a is b is None or torch.equal(a, b) for a, b in pairs)


def test_what_cannot_be_is_refused():
    model, images, x = problem()
    batch = (x, LABELS)
    for name, value in (("steps", 0), ("inner_steps", 0), ("lr", -1.0), ("inner_lr", 0.0)):
        with pytest.raises(ConfigurationError, match=f"{name}={value}"):
            refine_exemplars(model, images, LABELS, [batch], **{name: value})
    with pytest.raises(ConfigurationError, match=r"head='classifier'.*conv, bn, fc"):
        refine_exemplars(model, images, LABELS, [batch], head="classifier")
    model.fc.requires_grad_(False)
    with pytest.raises(ConfigurationError, match="nothing learns there"):
        refine_exemplars(model, images, LABELS, [batch])
    model.fc.requires_grad_(True)
    with pytest.raises(ConfigurationError, match="batch_size=4 of 3"):
        refine_exemplars(model, images, LABELS, [batch], batch_size=4)
    with pytest.raises(ConfigurationError, match=r"torch\.uint8"):
        refine_exemplars(model, images.byte(), LABELS, [batch])
    with pytest.raises(ConfigurationError, match=r"\(3, 1, 3, 3\).*\(2,\)"):
        finetune_on_exemplars(model, images, LABELS[:2])
    with pytest.raises(ConfigurationError, match="a validation batch is a Tensor"):
        refine_exemplars(model, images, LABELS, batch)
    with pytest.raises(ConfigurationError, match="a list, has run out"):
        refine_exemplars(model, images, LABELS, [])
    model.register_forward_hook(lambda _, args, output: (output,))
    with pytest.raises(ConfigurationError, match="returns a tuple"):
        refine_exemplars(model, images, LABELS, [batch])
