"""What α learns from, what it refuses, and that it learns the right thing."""

from __future__ import annotations

import copy
from collections import UserDict
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F

from aanets_plugin import (
    ConfigurationError,
    NonFiniteLossError,
    convert_to_aanet,
    levels,
)
from aanets_plugin.baselines import CifarResNet
from tests.core.alpha_setup import (
    aanet,
    alphas,
    in_use,
    labelled,
    learned,
    loader,
    samples,
    snapshot,
    started,
    touched,
)

# -- what cannot be learned from --------------------------------------------------------------


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_leaves_alpha_and_the_steps_as_they_were(bad):
    """The bad batch comes second: what the first one gave is dropped with it."""
    factors = iter([1.0, 1.0, 1.0, bad, 1.0, 1.0])
    model = in_use()
    bilevel = started(model, momentum=0.9, loss_fn=lambda m, b: labelled(m, b) * next(factors))
    bilevel.after_epoch(loader())
    before, alpha = snapshot(model), alphas(model)
    with pytest.raises(NonFiniteLossError, match=r"Phase 0, epoch 1: .* α was not changed"):
        bilevel.after_epoch(loader())
    assert torch.equal(alphas(model), alpha)
    assert touched(model, before) == []
    assert len(bilevel.history) == 3
    bilevel.after_epoch(loader())
    assert torch.equal(alphas(model), learned(loader(), updates=2, momentum=0.9))


def test_a_finite_loss_with_a_gradient_that_is_not_is_refused_too():
    model = aanet()
    bilevel = started(model, loss_fn=lambda m, b: (labelled(m, b) * 0).sqrt())
    before = alphas(model)
    with pytest.raises(NonFiniteLossError, match="or its gradient is not finite"):
        bilevel.after_epoch(loader())
    assert torch.equal(alphas(model), before)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (samples()[0], "is a Tensor: must"),
        ((samples()[0],), "is a tuple of Tensor: must"),
        ({"x": samples()[0], "class": samples()[1]}, "is a dict with 'x', 'class': must"),
        (("x", "y"), "is a tuple of str, str: must"),
        (None, "NoneType"),
        (3, "int"),
    ],
    ids=["tensor", "x alone", "dict", "strings", "None", "number"],
)
def test_a_batch_that_is_not_x_and_y_is_refused(batch, message):
    with pytest.raises(ConfigurationError, match=message):
        started(aanet()).after_epoch([batch])


@pytest.mark.parametrize(
    "label",
    [
        5,
        -1,
    ],
)
def test_a_label_without_an_output_is_refused(label):
    model = aanet()
    x, y = samples()
    y[3] = label
    bilevel, before = started(model), alphas(model)
    with pytest.raises(
        ConfigurationError, match=rf"labels from .*{label}.*, but the model has 5 outputs"
    ):
        bilevel.after_epoch([(x, y)])
    assert torch.equal(alphas(model), before)


def indexed(model, batch):
    _, x, y = batch
    return F.cross_entropy(model(x), y)


def test_a_loss_function_takes_batches_of_its_own_form():
    batches = [(torch.arange(4), x, y) for x, y in loader()]
    assert torch.equal(learned(batches, loss_fn=indexed), learned(loader()))
    shifted = [(index, x, (y + 1) % 5) for index, x, y in batches]
    assert not torch.equal(learned(shifted, loss_fn=indexed), learned(loader()))


def test_a_loss_function_takes_batches_that_are_dicts():
    batches = [{"image": {"rgb": x}, "label": y} for x, y in loader()]
    actual = learned(
        batches, loss_fn=lambda m, b: F.cross_entropy(m(b["image"]["rgb"]), b["label"])
    )
    assert torch.equal(actual, learned(loader()))


@dataclass
class Batch:
    x: torch.Tensor
    y: torch.Tensor


@pytest.mark.parametrize("kind", ["dataclass", "mapping"])
def test_a_loss_function_takes_batches_that_are_objects(kind):
    make = Batch if kind == "dataclass" else lambda x, y: UserDict(x=x, y=y)
    read = vars if kind == "dataclass" else dict
    actual = learned(
        [make(x, y) for x, y in loader()],
        loss_fn=lambda m, b: F.cross_entropy(m(read(b)["x"]), read(b)["y"]),
    )
    assert torch.equal(actual, learned(loader()))


# -- does it learn ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fitted():
    """A network that knows twenty samples by heart."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = CifarResNet(1, 5)
    x, y = samples(20, torch.float32)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(20):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model


@pytest.mark.parametrize("useless", ["stable", "plastic"])
def test_alpha_leaves_a_branch_that_gives_noise(fitted, useless):
    model = convert_to_aanet(copy.deepcopy(fitted), stem="plastic")
    with torch.no_grad():
        for level in levels(model):
            for parameter in getattr(level, useless).parameters():
                if parameter.dim() == 4:  # kernels in the plastic branch, φ in the stable one
                    size = 1.0 if useless == "stable" else parameter.std()
                    parameter.copy_(size * torch.randn_like(parameter))
    bilevel = started(model, lr=0.1)
    losses = [bilevel.after_epoch(loader(20, 20, torch.float32)) for _ in range(12)]
    assert losses[-1] < 0.75 * losses[0]
    plastic = [level.alpha[0].item() for level in levels(model)]
    if useless == "stable":
        assert min(plastic) > 0.6
    else:
        assert max(plastic) < 0.4
