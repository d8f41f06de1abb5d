"""Random numbers that follow from where a run is, so that none need to be saved."""

from __future__ import annotations

import random

import numpy as np
import torch


def derived_seed(*where: int) -> int:
    """A seed for this place in a run: seed, phase, epoch, …, each in its position."""
    return int(np.random.SeedSequence(where).generate_state(1)[0])


def seed_everything(*where: int) -> None:
    """Set the random numbers of python, numpy and torch."""
    number = derived_seed(*where)
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)


def generator(*where: int) -> torch.Generator:
    return torch.Generator().manual_seed(derived_seed(*where))
