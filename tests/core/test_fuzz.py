"""Any input to the public functions of the core: the outcome is a result or an error of ours."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import warnings

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import prune

import aanets_plugin
from aanets_plugin import AANetConfig, AANetError, BilevelStrategy, convert_to_aanet, levels
from tests.core.alpha_setup import alphas, loader, started
from tests.core.test_hardened_conversion import assert_unchanged, everything
from tests.networks import Block

few = settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
atoms = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 40),
    st.floats(),
    st.complex_numbers(),
    st.text(max_size=4),
    st.binary(max_size=4),
    st.sampled_from(
        [
            "all",
            "scaling",
            "frozen",
            "layer1",
            "1",
            "stable",
            "plastic",
            "paired",
            0.5,
            10**400,
            print,
            object(),
            int,
            nn.ReLU(),
            torch.zeros(0),
            torch.tensor(0.5),
            torch.tensor([0.5, 0.5]),
            torch.tensor([[1, 2], [3, 4]]),
            torch.tensor([0, 1, 1, 0]),
            torch.full((3, 2), math.nan),
        ]
    ),
)
junk = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.tuples(inner, inner),
        st.dictionaries(st.text(max_size=3), inner, max_size=3),
    ),
    max_leaves=6,
)


def options_of(function, own=()):
    """Some of the options of a function, with any values."""
    names = sorted({field.name for field in dataclasses.fields(AANetConfig)} & {*function} | {*own})
    return st.dictionaries(st.sampled_from(names), junk, max_size=3)


FIELDS = [field.name for field in dataclasses.fields(AANetConfig)]


@contextlib.contextmanager
def ours():
    """Lets errors of this package pass, and nothing else."""
    with warnings.catch_warnings(), contextlib.suppress(AANetError):
        warnings.simplefilter("ignore")
        yield


@few
@given(options_of(FIELDS))
def test_a_config_of_anything(options):
    with ours():
        config = AANetConfig(**options)
        assert config.lr >= 0
        assert sum(config.initial_alpha) == pytest.approx(1)
        assert AANetConfig(**{field: getattr(config, field) for field in FIELDS}) == config


@few
@given(options_of(["blocks", "stem", "stages", "alpha"]))
def test_a_conversion_with_anything_is_made_or_changes_nothing(options):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), Block(4, 4), Block(4, 8, 2))
    before = everything(model)
    with ours():
        convert_to_aanet(model, **options)
        assert levels(model)
        return
    assert_unchanged(model, before)


# Parts of a network, some of them strange


class Odd(nn.Conv2d):
    phi = 1


class Final(nn.Conv2d):
    def __init_subclass__(cls, **_):
        raise TypeError("final")


class Uncopyable(Block):
    def __deepcopy__(self, memo):
        raise RuntimeError("no copy")


PARTS = {
    "block": lambda: Block(4, 4),
    "row": lambda: nn.Sequential(Block(4, 4), Block(4, 4)),
    "list": lambda: nn.ModuleList([Block(4, 4), Block(4, 4)]),
    "frozen": lambda: Block(4, 4).requires_grad_(False),
    "half": lambda: Block(4, 4).half(),
    "complex": lambda: nn.Sequential(Block(4, 4), nn.Conv2d(4, 4, 1, dtype=torch.complex64)),
    "own phi": lambda: nn.Sequential(Block(4, 4), Odd(4, 4, 1)),
    "final": lambda: nn.Sequential(Block(4, 4), Final(4, 4, 1)),
    "uncopyable": lambda: Uncopyable(4, 4),
    "normed": lambda: nn.Sequential(
        Block(4, 4), nn.utils.parametrizations.weight_norm(nn.Conv2d(4, 4, 1))
    ),
    "pruned": lambda: nn.Sequential(
        Block(4, 4), prune.random_unstructured(nn.Conv2d(4, 4, 1), "weight", 0.5)
    ),
    "identity": nn.Identity,
    "empty": nn.Sequential,
    "linear": lambda: nn.Linear(4, 4),
}
BLOCKS = st.lists(st.sampled_from(["all", "scaling", "frozen"]), min_size=1, max_size=3)


@few
@given(
    st.lists(st.sampled_from(sorted(PARTS)), max_size=4),
    BLOCKS,
    st.sampled_from(["stable", "plastic", "paired"]),
    st.booleans(),
)
def test_a_network_of_any_parts_is_converted_or_left_as_it_was(parts, blocks, stem, shared):
    modules = [PARTS[part]() for part in parts]
    model = nn.Sequential(nn.Conv2d(3, 4, 3, 1, 1), *modules, *(modules[:1] if shared else []))
    before = everything(model)
    with ours():
        convert_to_aanet(model, blocks=blocks, stem=stem)
        bilevel = BilevelStrategy(model)
        for _ in range(2):
            with bilevel.phase():
                assert len(list(model.parameters())) or blocks == ["frozen"]
        return
    if not levels(model):
        assert_unchanged(model, before)


LEARNING = ["lr", "momentum", "normalize", "schedule", "update_base", "max_batches"]


@few
@given(options_of(LEARNING, ["loss_fn", "base_phase", "first_phase"]))
def test_a_strategy_with_anything_works_or_changes_nothing(options):
    model = _MODEL
    before = everything(model)
    with ours():
        BilevelStrategy(model, **options)
        aanets_plugin.freeze_base(model)
        return
    assert_unchanged(model, before)


def small_model():
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5))
    return convert_to_aanet(nn.Sequential(nn.Conv2d(3, 4, 3), Block(4, 4), *head).double())


_MODEL = small_model()


@few
@given(junk, junk)
def test_an_attachment_with_anything(every, optimizer):
    bilevel = started(_MODEL, lr=0.0)
    with ours(), bilevel.attach(loader(), every=every, optimizer=optimizer):
        pass
    bilevel.end_phase()


@few
@given(junk)
def test_balanced_data_of_anything_change_alpha_or_nothing(batches):
    bilevel = started(_MODEL, lr=0.1)
    before = alphas(_MODEL)
    with ours():
        bilevel.after_epoch(None if callable(batches) else batches)
        return
    assert torch.equal(alphas(_MODEL), before)


FUNCTIONS = {
    name: getattr(aanets_plugin, name)
    for name in (
        "balanced_indices",
        "balanced_subset",
        "find_stages",
        "fold",
        "freeze_base",
        "herd",
        "herd_classes",
        "levels",
        "load_plain_state_dict",
        "MemoryBudget",
        "parameter_groups",
        "plot_alpha",
        "profile",
        "profile_table",
        "targets_of",
        "thaw_base",
        "to_plain",
    )
}
ARGUMENTS = {"balanced_subset": 2, "herd": 2, "herd_classes": 3, "load_plain_state_dict": 2}
ARGUMENTS |= {"MemoryBudget": 3, "profile": 3, "balanced_indices": 3, "parameter_groups": 3}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_of_anything(name):
    @few
    @given(st.tuples(*[junk] * ARGUMENTS.get(name, 1)))
    def call(arguments):
        with ours():
            FUNCTIONS[name](*arguments)

    call()
