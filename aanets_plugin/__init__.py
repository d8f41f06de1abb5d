"""Adaptive Aggregation Networks as a plug-in for class-incremental learning.

Names are imported on first use, so that the command `aanets` explains itself at once.
"""

from typing import TYPE_CHECKING

from aanets_plugin.lazy_names import on_first_use

if TYPE_CHECKING:
    from aanets_plugin.activation_maps import grad_cam as grad_cam
    from aanets_plugin.activation_maps import plot_grad_cam as plot_grad_cam
    from aanets_plugin.alpha_history import AlphaRecord as AlphaRecord
    from aanets_plugin.bilevel import BilevelStrategy as BilevelStrategy
    from aanets_plugin.branch_results import BranchReport as BranchReport
    from aanets_plugin.budget import MemoryBudget as MemoryBudget
    from aanets_plugin.budget import Profile as Profile
    from aanets_plugin.budget import profile as profile
    from aanets_plugin.budget import profile_table as profile_table
    from aanets_plugin.config import AANetConfig as AANetConfig
    from aanets_plugin.convert import convert_to_aanet as convert_to_aanet
    from aanets_plugin.convert import freeze_base as freeze_base
    from aanets_plugin.convert import thaw_base as thaw_base
    from aanets_plugin.errors import AANetError as AANetError
    from aanets_plugin.errors import AlreadyConvertedError as AlreadyConvertedError
    from aanets_plugin.errors import ConfigurationError as ConfigurationError
    from aanets_plugin.errors import FileWriteError as FileWriteError
    from aanets_plugin.errors import NonFiniteLossError as NonFiniteLossError
    from aanets_plugin.errors import PhaseError as PhaseError
    from aanets_plugin.errors import ProcessError as ProcessError
    from aanets_plugin.errors import UnsupportedModelError as UnsupportedModelError
    from aanets_plugin.exemplars import balanced_indices as balanced_indices
    from aanets_plugin.exemplars import balanced_subset as balanced_subset
    from aanets_plugin.exemplars import targets_of as targets_of
    from aanets_plugin.export import export_onnx as export_onnx
    from aanets_plugin.fold import fold as fold
    from aanets_plugin.herding import herd as herd
    from aanets_plugin.herding import herd_classes as herd_classes
    from aanets_plugin.hub import from_hub as from_hub
    from aanets_plugin.hub import push_to_hub as push_to_hub
    from aanets_plugin.inspection import branch_report as branch_report
    from aanets_plugin.levels import AdaptiveLevel as AdaptiveLevel
    from aanets_plugin.levels import levels as levels
    from aanets_plugin.optim import parameter_groups as parameter_groups
    from aanets_plugin.plain import load_plain_state_dict as load_plain_state_dict
    from aanets_plugin.plain import to_plain as to_plain
    from aanets_plugin.plots import plot_alpha as plot_alpha
    from aanets_plugin.saving import load_aanet as load_aanet
    from aanets_plugin.saving import save_aanet as save_aanet
    from aanets_plugin.stages import find_stages as find_stages

__version__ = "0.1.0"

# `fold` and `levels` are modules that can be called like the functions of the same names.
_NAMES = {
    "activation_maps": ("grad_cam", "plot_grad_cam"),
    "alpha_history": ("AlphaRecord",),
    "bilevel": ("BilevelStrategy",),
    "branch_results": ("BranchReport",),
    "budget": ("MemoryBudget", "Profile", "profile", "profile_table"),
    "config": ("AANetConfig",),
    "convert": ("convert_to_aanet", "freeze_base", "thaw_base"),
    "errors": (
        "AANetError",
        "AlreadyConvertedError",
        "ConfigurationError",
        "FileWriteError",
        "NonFiniteLossError",
        "PhaseError",
        "ProcessError",
        "UnsupportedModelError",
    ),
    "exemplars": ("balanced_indices", "balanced_subset", "targets_of"),
    "export": ("export_onnx",),
    "fold": ("fold",),
    "herding": ("herd", "herd_classes"),
    "inspection": ("branch_report",),
    "hub": ("from_hub", "push_to_hub"),
    "levels": ("AdaptiveLevel", "levels"),
    "optim": ("parameter_groups",),
    "plain": ("load_plain_state_dict", "to_plain"),
    "plots": ("plot_alpha",),
    "saving": ("load_aanet", "save_aanet"),
    "stages": ("find_stages",),
}
__getattr__, _LAZY = on_first_use(__name__, _NAMES)
__all__ = [*_LAZY, "__version__"]


def __dir__() -> list[str]:
    return __all__
