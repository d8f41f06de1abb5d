"""Random seeds that are derived from the position in a run, so that no state must be saved."""

import random

import numpy as np
import torch


def derived_seed(*where: int) -> int:
    """A seed for this position in a run: seed, phase, epoch and so on."""
    return int(np.random.SeedSequence(where).generate_state(1)[0])


def seed_everything(*where: int) -> None:
    """Seed Python, numpy and torch."""
    number = derived_seed(*where)
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)


def generator(*where: int) -> torch.Generator:
    """A torch generator for this position in a run."""
    return torch.Generator().manual_seed(derived_seed(*where))
