"""Nothing of ours moves the global random numbers of the host."""

from __future__ import annotations

import random

import numpy as np
import torch

from aanets_plugin.random_state import random_state_kept
from tests.core.alpha_setup import aanet, loader, started


def numbers():
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def seeded():
    random.seed(3)
    np.random.seed(3)
    torch.manual_seed(3)


def test_all_three_states_come_back():
    seeded()
    expected = numbers()
    seeded()
    with random_state_kept():
        assert numbers() == expected
        assert numbers() != expected
    assert numbers() == expected


def test_augmentation_of_the_balanced_data_does_not_move_them():
    def augmented():
        for x, y in loader():
            yield x + random.random() + np.random.rand() + torch.rand(()), y

    bilevel = started(aanet())
    seeded()
    expected = numbers()
    seeded()
    bilevel.after_epoch(augmented)
    assert numbers() == expected
