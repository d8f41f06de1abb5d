"""The authors' update against its arithmetic, written out with torch.optim.SGD on scalars."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from aanets_plugin import (
    AANetConfig,
    BilevelStrategy,
    ConfigurationError,
    NonFiniteLossError,
    convert_to_aanet,
    levels,
    parameter_groups,
)
from aanets_plugin.baselines import CifarResNet
from aanets_plugin.scaling import scaled_layers
from tests.core.alpha_setup import wander
from tests.networks import shake

PHASES, EPOCHS = 2, 2


@pytest.fixture(autouse=True)
def _one_thread():
    """Networks this small only wait for a second one."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def aanet(**options):
    torch.manual_seed(1)
    return wander(convert_to_aanet(shake(CifarResNet(1, 5)).double(), **options))


def batches(seed, count=2):
    generator = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(4, 3, 8, 8, generator=generator, dtype=torch.float64), torch.arange(4) + i % 2)
        for i in range(count)
    ]


def host_optimizer(model):
    groups = parameter_groups(model, lr=0.01, weight_decay=5e-4)
    return torch.optim.SGD(groups, momentum=0.9)


def stable_weights(model):
    return [level.alpha[1].item() for level in levels(model)]


def run(lr, **options):
    """The preset in a host's loop: a for each level after each epoch."""
    model = aanet()
    bilevel = BilevelStrategy.official(model, base_phase=False, lr=lr, **options)
    weights = []
    for phase in range(PHASES):
        bilevel.begin_phase()
        optimizer = host_optimizer(model)
        for _ in range(EPOCHS):
            model.train()
            for x, y in batches(10 + phase):
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
            bilevel.after_epoch(batches(20 + phase))
            weights.append(stable_weights(model))
        bilevel.end_phase()
    return torch.tensor(weights, dtype=torch.float64)


def written_out(lr, *, slip=None):
    """The same with a scalar parameter per level, its gradient never cleared, and torch's SGD.

    `slip` names one thing to do otherwise.
    """
    model = aanet()
    plastic = slip == "a is the weight of the plastic branch"
    scalars = [nn.Parameter(level.alpha[1].clone()) for level in levels(model)]

    def forget():
        for a in scalars:
            a.grad = None

    def forward(x):
        for level, a in zip(levels(model), scalars, strict=True):
            level.alpha = torch.stack([a, 1 - a] if plastic else [1 - a, a])
        return model(x)

    def sgd():
        momentum = 0.0 if slip == "no momentum" else 0.9
        decay = 0.0 if slip == "no weight decay" else 5e-4
        return torch.optim.SGD(scalars, lr=lr, momentum=momentum, weight_decay=decay)

    upper = sgd()
    weights = []
    for phase in range(PHASES):
        lower = host_optimizer(model)
        if slip != "one momentum for all phases":
            upper = sgd()
        if slip == "a new gradient in each phase":
            forget()
        for _ in range(EPOCHS):
            model.train()
            for x, y in batches(10 + phase):
                lower.zero_grad()
                F.cross_entropy(forward(x), y).backward()
                lower.step()
            if slip == "no gradient of the lower level":
                forget()
            model.eval()
            for x, y in batches(20 + phase):
                if slip == "cleared gradients":
                    forget()
                F.cross_entropy(forward(x), y).backward()
                upper.step()
            weights.append([1 - a.item() if plastic else a.item() for a in scalars])
    return torch.tensor(weights, dtype=torch.float64)


# A double near 0.5 is exact to 1e-16, a weight moves by about lr * 0.1 here: with lr = 1e-8 the
# move itself is known to 1e-7 of its size. 1e-5 leaves room for some roundings.
PART_OF_THE_MOVE = 1e-5


def same_moves(actual, expected):
    move = (expected - 0.5).abs().max().item()
    return (actual - expected).abs().max().item() < PART_OF_THE_MOVE * move


@pytest.mark.parametrize("lr", [1e-8, 1e-4])
def test_the_preset_is_the_arithmetic_of_the_official_loop(lr):
    expected = written_out(lr)
    assert (expected - 0.5).abs().min() > 1e-3 * lr
    assert same_moves(run(lr), expected)


def test_in_the_loop_of_icarl_the_gradient_is_cleared():
    expected = written_out(1e-4, slip="cleared gradients")
    assert same_moves(run(1e-4, loop="icarl"), expected)
    assert not same_moves(run(1e-4, loop="lucir"), expected)


@pytest.mark.parametrize(
    "slip",
    [
        "cleared gradients",
        "no gradient of the lower level",
        "a new gradient in each phase",
        "one momentum for all phases",
        "no momentum",
        "no weight decay",
        "a is the weight of the plastic branch",
    ],
)
def test_other_arithmetic_gives_another_alpha(slip):
    """The controls: the comparison sees each ingredient."""
    assert not same_moves(run(1e-4), written_out(1e-4, slip=slip))


def test_the_defaults_are_those_of_the_authors():
    bilevel = BilevelStrategy.official(aanet())
    assert (bilevel.lr, bilevel.step.momentum, bilevel.weight_decay) == (1e-8, 0.9, 5e-4)


@pytest.mark.parametrize("decays_delta", [True, False], ids=["all parameters", "groups"])
def test_phi_can_decay_towards_0_as_in_the_authors_code(decays_delta):
    """Against torch's SGD on φ itself, in a network whose δ is φ − 1 by hand."""

    def host(model):
        if decays_delta:
            return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.02)
        return torch.optim.SGD(parameter_groups(model, 0.1, weight_decay=0.02), momentum=0.9)

    def learned(phi_decay):
        model = aanet().eval()
        bilevel = BilevelStrategy.official(model, base_phase=False, lr=0, phi_decay=phi_decay)
        with bilevel.phase():
            optimizer = host(model)
            for x, y in batches(10, count=4):
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
        state = {name: value.clone() for name, value in model.state_dict().items()}
        optimizer.zero_grad()
        model(x).sum().backward()
        before = next(scaled_layers(model)).delta.grad.clone()
        optimizer.step()  # after the phase the hook is gone
        assert torch.equal(next(scaled_layers(model)).delta.grad, before)
        return state

    model = aanet().eval()
    deltas = {n: p for n, p in model.named_parameters() if n.endswith("delta")}
    phis = {name: nn.Parameter(1 + delta.detach()) for name, delta in deltas.items()}
    rest = [p for name, p in model.named_parameters() if name not in deltas]
    optimizer = torch.optim.SGD([*phis.values(), *rest], lr=0.1, momentum=0.9, weight_decay=0.02)
    for x, y in batches(10, count=4):
        optimizer.zero_grad()
        outputs = torch.func.functional_call(model, {n: phi - 1 for n, phi in phis.items()}, (x,))
        F.cross_entropy(outputs, y).backward()
        optimizer.step()

    def distance(state):
        return max((state[name] + 1 - phi).abs().max().item() for name, phi in phis.items())

    assert distance(learned(0.02)) < 1e-12  # float64, values near 1
    assert distance(learned(None)) > 1e-3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loop": "podnet"}, r"official='podnet': must be 'lucir' or 'icarl'"),
        ({"phi_decay": -1.0}, r"phi_decay=-1.0: must be a number ≥ 0"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ConfigurationError, match=message):
        BilevelStrategy.official(aanet(), **options)


def test_phi_decay_belongs_to_the_official_update():
    with pytest.raises(ConfigurationError, match=r"phi_decay=0.1: .*needs official"):
        AANetConfig(phi_decay=0.1)


def test_the_hosts_optimizer_leaves_alpha_alone_though_it_collects_a_gradient():
    model = aanet()
    bilevel = BilevelStrategy.official(model, base_phase=False)
    bilevel.begin_phase()
    optimizer = host_optimizer(model)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    weights, collected = stable_weights(model), []
    for x, y in batches(10):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        collected.append([level.alpha.grad.clone() for level in levels(model)])
    assert stable_weights(model) == weights
    pairs = zip(model.parameters(), before, strict=True)
    assert all(not torch.equal(parameter, start) for parameter, start in pairs)
    for first, second in zip(*collected, strict=True):
        assert first.norm() > 0
        assert not torch.equal(first, second)


def test_alpha_asks_for_a_gradient_in_incremental_phases_only():
    model = aanet()
    bilevel = BilevelStrategy.official(model)
    bilevel.begin_phase()
    assert bilevel.after_epoch() is None
    bilevel.end_phase()
    asked = [[level.alpha.requires_grad for level in levels(model)]]
    bilevel.begin_phase()
    wander(model)
    bilevel.after_epoch(batches(20))
    asked.append([level.alpha.requires_grad for level in levels(model)])
    bilevel.end_phase()
    asked.append([level.alpha.requires_grad for level in levels(model)])
    assert asked == [[False] * 3, [True] * 3, [False] * 3]


def test_an_update_leaves_the_rest_of_the_model_alone():
    model = aanet().train()
    model.layer2.eval()
    bilevel = BilevelStrategy.official(model, base_phase=False, lr=1e-2)
    bilevel.begin_phase()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    flags = [module.training for module in model.modules()]
    bilevel.after_epoch(batches(20))
    changed = {k for k, v in model.state_dict().items() if not torch.equal(v, before[k])}
    assert changed == {"layer1.alpha", "layer2.alpha", "layer3.alpha"}
    assert [module.training for module in model.modules()] == flags
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_alpha_stays_between_0_and_1():
    model = aanet()
    bilevel = BilevelStrategy.official(model, base_phase=False, lr=100.0)
    bilevel.begin_phase()
    for _ in range(4):
        bilevel.after_epoch(batches(20))
    for record in bilevel.history:
        assert all(0 <= weight <= 1 for weight in record.weights)
        assert sum(record.weights) == 1
    assert any(0.0 in record.weights for record in bilevel.history)


def test_the_warning_about_phi_points_at_the_hosts_line():
    bilevel = BilevelStrategy.official(
        convert_to_aanet(shake(CifarResNet(1, 5)).double()), base_phase=False
    )
    bilevel.begin_phase()
    x, y = batches(20)[0]
    F.cross_entropy(bilevel.model(x), y).backward()  # a training whose optimizer lacks φ
    with pytest.warns(UserWarning, match="did not move") as caught:
        bilevel.after_epoch(batches(20))
    assert [warning.filename for warning in caught] == [__file__]


@pytest.mark.parametrize("blocks", [("all",), ("all", "scaling", "frozen")], ids="+".join)
def test_more_or_fewer_than_two_branches_are_refused(blocks):
    with pytest.raises(ConfigurationError, match=r"layer1 has the branches.*needs two"):
        BilevelStrategy.official(aanet(blocks=blocks))
    BilevelStrategy.official(aanet(blocks=("all", "all")))


def test_a_refused_model_is_left_as_it_was():
    model = aanet(blocks=("all", "scaling", "frozen"))
    with pytest.raises(ConfigurationError):
        BilevelStrategy.official(model)
    assert [len(level.branches) for level in levels(model)] == [3, 3, 3]


def test_an_empty_loader_is_refused():
    bilevel = BilevelStrategy.official(aanet(), base_phase=False)
    bilevel.begin_phase()
    with pytest.raises(ConfigurationError, match="has no batch"):
        bilevel.after_epoch([])


@pytest.mark.parametrize(
    "spoil",
    [
        lambda loss: loss * float("nan"),
        lambda loss: loss * float("inf"),
        lambda loss: (loss * 0).sqrt(),
    ],
    ids=["nan", "inf", "finite loss, infinite gradient"],
)
def test_a_loss_that_is_not_finite_leaves_alpha_as_it_was(spoil):
    model = aanet()
    bilevel = BilevelStrategy.official(
        model,
        base_phase=False,
        lr=1e-2,
        loss_fn=lambda m, batch: spoil(F.cross_entropy(m(batch[0]), batch[1])),
    )
    bilevel.begin_phase()
    before = stable_weights(model)
    with pytest.raises(NonFiniteLossError, match="was not changed"):
        bilevel.after_epoch(batches(20))
    assert stable_weights(model) == before
    assert all(level.alpha.grad is None for level in levels(model))
