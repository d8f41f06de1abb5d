"""fold: a copy for inference, with φ multiplied in and BatchNorm fused into convolutions."""

import copy
import inspect
from collections import Counter
from collections.abc import Iterator
from typing import Any, TypeVar

from torch import fx, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.fusion import fuse_conv_bn_weights

from aanets_plugin.callable_module import call_as
from aanets_plugin.checks import require_whole
from aanets_plugin.errors import UnsupportedModelError
from aanets_plugin.levels import Branches
from aanets_plugin.scaling import release

Model = TypeVar("Model", bound=nn.Module)


def fold(model: Model) -> Model:
    """Return a copy of `model` for inference, with the same outputs and fewer operations.

    φ is multiplied into the kernels. A BatchNorm is fused into the convolution before it if tracing
    shows that it is the only reader of that convolution's output; otherwise it stays. Plain
    networks can be folded too. The copy has no learnable parameters.
    """
    if not isinstance(model, nn.Module):
        raise UnsupportedModelError(f"model={model!r:.80}: must be a torch.nn.Module.")
    require_whole(model, "fold")
    folded = copy.deepcopy(model).eval()
    release(folded, training=False)
    graphs = {parent: graph for parent in folded.modules() if (graph := _trace(parent))}
    uses = Counter(id(module) for traced in graphs.items() for module in _used_modules(*traced))
    places = Counter(id(m) for _, m in folded.named_modules(remove_duplicate=False))
    for parent, graph in graphs.items():
        for source_name, norm_name in _pairs(graph):
            source, norm = parent.get_submodule(source_name), parent.get_submodule(norm_name)
            conv, rest = _last(source), _after_fusion(norm)
            involved = (source, conv, norm)
            once = all(uses[id(m)] == places[id(m)] == 1 for m in involved)
            hooked = any(m._forward_hooks or m._forward_pre_hooks for m in involved)
            if once and rest is not None and _is_plain_conv(conv) and not hooked:
                _fuse(conv, norm)
                parent.set_submodule(norm_name, rest)
    return folded.eval().requires_grad_(False)


def _fuse(conv: Any, norm: Any) -> None:
    conv.weight, conv.bias = fuse_conv_bn_weights(
        conv.weight,
        conv.bias,
        norm.running_mean,
        norm.running_var,
        norm.eps,
        norm.weight,
        norm.bias,
    )


def _last(module: nn.Module) -> nn.Module:
    """Return the module whose output is that of a nn.Sequential, e.g. the end of a deep stem."""
    while type(module) is nn.Sequential and len(module):
        module = module[-1]
    return module


def _is_plain_conv(module: nn.Module) -> bool:
    """Whether the module is a convolution with its own weight and torch's own forward."""
    return "weight" in module._parameters and any(
        isinstance(module, plain)
        and type(module).forward is plain.forward
        and type(module)._conv_forward is plain._conv_forward
        for plain in (nn.Conv1d, nn.Conv2d, nn.Conv3d)
    )


def _after_fusion(norm: nn.Module) -> nn.Module | None:
    """Return what replaces a fused BatchNorm; None if it cannot be fused."""
    if not isinstance(norm, _BatchNorm) or norm.running_mean is None:
        return None
    if type(norm).forward in (_BatchNorm.forward, nn.SyncBatchNorm.forward):
        return nn.Identity()
    rest = dict(norm.named_children())  # timm's BatchNormAct2d has dropout and activation
    return nn.Sequential(rest["drop"], rest["act"]) if set(rest) == {"drop", "act"} else None


class _ShallowTracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True


def _trace(module: nn.Module) -> fx.Graph | None:
    """Return the graph of submodule calls in the module's forward; None if it cannot be traced."""
    containers = (nn.ModuleList, nn.ModuleDict, Branches)
    if isinstance(module, containers) or not any(True for _ in module.children()):
        return None
    parameters = inspect.signature(module.forward).parameters.values()
    if any(parameter.default is not parameter.empty for parameter in parameters):
        return None  # the graph may depend on an argument that the caller passes
    try:
        return _ShallowTracer().trace(copy.copy(module))  # a copy, since forward may set attributes
    except Exception:  # not traceable: the BatchNorm stays, which is correct too
        return None


def _used_modules(module: nn.Module, graph: fx.Graph) -> Iterator[nn.Module]:
    """Yield the submodule of every call, and of every read of a submodule's tensor, in a graph."""
    for node in graph.nodes:
        if node.op == "call_module":
            yield module.get_submodule(str(node.target))
        elif node.op == "get_attr" and (owner := str(node.target).rpartition(".")[0]):
            yield module.get_submodule(owner)


def _pairs(graph: fx.Graph) -> Iterator[tuple[str, str]]:
    """Yield pairs of module names where the second is the only reader of the first's output."""
    for node in graph.nodes:
        source = node.args[0] if node.op == "call_module" and node.args else None
        if isinstance(source, fx.Node) and source.op == "call_module" and len(source.users) == 1:
            yield str(source.target), str(node.target)


call_as(fold)
