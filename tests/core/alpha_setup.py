"""A small converted network, balanced data and a strategy on them, for the tests of α."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from aanets_plugin import (
    BilevelStrategy,
    convert_to_aanet,
    levels,
)
from aanets_plugin.alpha_gradient import mean_gradients
from aanets_plugin.baselines import CifarResNet
from tests.networks import shake

# Two orders of adding up some thousand doubles differ by about 1e-13.
ROUNDING = 1e-10


def wander(model):
    """Move the branches apart, as training does."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            by = 0.3 * torch.randn_like(parameter)
            parameter.add_(by if name.endswith("delta") else by * parameter)
    return model


def aanet(dtype=torch.float64, **options):
    torch.manual_seed(1)
    return wander(convert_to_aanet(shake(CifarResNet(1, 5)).to(dtype), **options))


def samples(count=8, dtype=torch.float64):
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(count, 3, 8, 8, generator=generator, dtype=torch.float64).to(dtype)
    return x, torch.arange(count) % 5


def loader(size=4, count=8, dtype=torch.float64):
    return list(zip(*(part.split(size) for part in samples(count, dtype)), strict=True))


def started(model, **options):
    """A strategy in its first incremental phase."""
    bilevel = BilevelStrategy(model, base_phase=False, **options)
    bilevel.begin_phase()
    return bilevel


def alphas(model):
    """The α of all levels in one tensor."""
    return torch.cat([level.alpha.detach().clone() for level in levels(model)])


def learned(batches, updates=3, model=None, **options):
    """α of the same network after some updates on `batches`.

    More than one update: the first normalized step of two branches has one of two values only.
    """
    model = aanet() if model is None else model
    bilevel = started(model, **options)
    for _ in range(updates):
        bilevel.after_epoch(batches)
    return alphas(bilevel.model)


def train(model, optimizer, steps=2):
    """The host's lower level."""
    x, y = samples()
    model.train()
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


def labelled(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


class Untouchable:
    """A loader that nobody may look into."""

    def __iter__(self):
        raise AssertionError("the balanced loader was asked for its batches")


def snapshot(model):
    """What an update has to leave alone; gradients and α's own flags as the objects they are."""
    return {
        "values": {k: v.clone() for k, v in model.state_dict().items() if "alpha" not in k},
        "grads": [
            (p.grad, p.grad if p.grad is None else p.grad.clone()) for p in model.parameters()
        ],
        "training": [module.training for module in model.modules()],
        "requires_grad": [p.requires_grad for p in model.parameters()],
        "alpha": [(level.alpha.requires_grad, level.alpha.grad) for level in levels(model)],
        "rng": torch.get_rng_state(),
    }


def touched(model, before):
    """The names of what differs from a snapshot."""
    now = snapshot(model)
    same = {
        "values": all(torch.equal(v, before["values"][k]) for k, v in now["values"].items()),
        "grads": all(
            a is c and (a is None or torch.equal(a, d))
            for (a, _), (c, d) in zip(now["grads"], before["grads"], strict=True)
        ),
        "rng": torch.equal(now["rng"], before["rng"]),
    }
    for name in ("training", "requires_grad", "alpha"):
        same[name] = now[name] == before[name]
    return sorted(name for name, is_same in same.items() if not is_same)


def in_use(**options):
    """A model as a host leaves it: mixed modes, some parameters frozen, some with a gradient."""
    model = aanet(**options)
    model.train()
    model.layer2.eval()
    model.layer1.branches[0][0].bn1.eval()
    model.fc.requires_grad_(False)
    for index, parameter in enumerate(model.parameters()):
        if index % 2:
            parameter.grad = torch.full_like(parameter, 7.0)
    return model


def gradients_of(bilevel, batches):
    """The mean loss and its gradient by each α, as an update of this strategy sees them."""
    return mean_gradients(bilevel.model, bilevel.loss_fn, batches)
