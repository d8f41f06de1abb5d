"""Settings of runs and hyperparameters of methods are checked when they are made."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aanets_plugin import AANetError, ConfigurationError
from aanets_plugin.baselines import LUCIR, ICaRL, Mnemonics, PODNet
from aanets_plugin.experiments import Memory, Training

METHODS = (ICaRL, LUCIR, PODNet, Mnemonics)


@pytest.mark.parametrize(
    ("make", "values", "message"),
    [
        (LUCIR, {"k": 0}, "k=0: must be an integer ≥ 1."),
        (LUCIR, {"k": 2.0}, "k=2.0: must be an integer ≥ 1."),
        (LUCIR, {"k": True}, "k=True: must be an integer ≥ 1."),
        (LUCIR, {"base": math.nan}, "base=nan: must be a finite number ≥ 0."),
        (ICaRL, {"temperature": 0}, "temperature=0: must be a finite number > 0."),
        (ICaRL, {"imprint": "no"}, "imprint='no': must be True or False."),
        (PODNet, {"proxies": None}, "proxies=None: must be an integer ≥ 1."),
        (Mnemonics, {"refine_steps": -1}, "refine_steps=-1: must be an integer ≥ 1."),
        (Mnemonics, {"k": 0}, "k=0: must be an integer ≥ 1."),
        (Training, {"lr": "0.1"}, "lr='0.1': must be a finite number > 0."),
        (Training, {"base_lr": math.inf}, "base_lr=inf: must be a finite number > 0, or None."),
        (Training, {"momentum": 1}, "momentum=1: must be a finite number ≥ 0 and < 1."),
        (Training, {"schedule": ["step"]}, "schedule=['step']: must be 'step' or 'cosine', or"),
        (Training, {"milestones": "ab"}, "milestones='ab': must be a tuple, each entry a finite"),
        (Memory, {"per_class": b"5"}, "per_class=b'5': must be an integer ≥ 1, or None."),
        (Memory, {"strict": 1}, "strict=1: must be True or False."),
    ],
    ids=str,
)
def test_a_wrong_value_is_quoted_with_what_is_allowed(make, values, message):
    with pytest.raises(ConfigurationError) as caught:
        make(**values)
    assert str(caught.value).startswith(message)


def test_numbers_of_numpy_become_pythons_and_lists_become_tuples():
    assert type(LUCIR(k=np.int64(3)).k) is int
    assert type(Training(lr=np.float32(0.5)).lr) is float
    assert Training(milestones=[0.3, 0.6]).milestones == (0.3, 0.6)


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=3),
    st.binary(max_size=3),
    st.lists(st.one_of(st.none(), st.floats(), st.text(max_size=2)), max_size=3),
    st.sampled_from([{}, object(), 10**400, 1j, np.float64(0.5), np.zeros(2), np.array(3)]),
)


@pytest.mark.parametrize("make", [*METHODS, Training, Memory])
def test_any_value_gives_an_object_or_an_error_of_ours(make):
    names = [field.name for field in dataclasses.fields(make) if field.init]

    @settings(max_examples=50, deadline=None)
    @given(st.dictionaries(st.sampled_from(names), JUNK, min_size=1, max_size=2))
    def check(values):
        try:
            made = make(**values)
        except AANetError:
            return
        assert dataclasses.replace(made) == made  # no NaN, no array

    check()
