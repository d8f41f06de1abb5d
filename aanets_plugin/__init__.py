"""Adaptive Aggregation Networks as a plug-in for class-incremental learning."""

from typing import TYPE_CHECKING

from aanets_plugin.bilevel import AlphaRecord, BilevelStrategy
from aanets_plugin.budget import MemoryBudget, Profile, profile, profile_table
from aanets_plugin.config import AANetConfig
from aanets_plugin.convert import convert_to_aanet, freeze_base, thaw_base
from aanets_plugin.errors import (
    AANetError,
    AlreadyConvertedError,
    ConfigurationError,
    NonFiniteLossError,
    PhaseError,
    UnsupportedModelError,
)
from aanets_plugin.exemplars import balanced_indices, balanced_subset, targets_of
from aanets_plugin.herding import herd, herd_classes
from aanets_plugin.levels import AdaptiveLevel
from aanets_plugin.optim import parameter_groups
from aanets_plugin.plots import plot_alpha
from aanets_plugin.stages import find_stages

if TYPE_CHECKING:
    from aanets_plugin.fold import fold
    from aanets_plugin.levels import levels
else:  # the modules of these names, which can be called like the functions
    from aanets_plugin import fold, levels

__version__ = "0.1.0"

__all__ = [
    "AANetConfig",
    "AANetError",
    "AdaptiveLevel",
    "AlphaRecord",
    "AlreadyConvertedError",
    "BilevelStrategy",
    "ConfigurationError",
    "MemoryBudget",
    "NonFiniteLossError",
    "PhaseError",
    "Profile",
    "UnsupportedModelError",
    "__version__",
    "balanced_indices",
    "balanced_subset",
    "convert_to_aanet",
    "find_stages",
    "fold",
    "freeze_base",
    "herd",
    "herd_classes",
    "levels",
    "parameter_groups",
    "plot_alpha",
    "profile",
    "profile_table",
    "targets_of",
    "thaw_base",
]
