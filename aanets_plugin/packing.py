"""Convolutions whose kernels lie ready for oneDNN, torch's library for the CPU."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _get_current_dispatch_mode

# Elements of a kernel. A smaller one is laid out in less time than the packed call costs more.
LARGE = 2**16


def pack_convolutions(module: nn.Module) -> None:
    """Make the convolutions of `module` with large kernels keep these packed from now on."""
    if not _can_pack():
        return
    for conv in module.modules():
        if type(conv) is nn.Conv2d and conv.weight.numel() >= LARGE and _pads_evenly(conv):
            conv.__class__ = PackedConv2d


def _pads_evenly(conv: nn.Conv2d) -> bool:
    """With zeros, as many on one side as on the other: other paddings are a step of their own."""
    return conv.padding_mode == "zeros" and conv.padding != "same"


@dataclass(frozen=True)
class _Packed:
    """A packed kernel and what it was made of."""

    kernel: Tensor
    source: Tensor
    """Shares the weight's memory, which therefore holds no other weight as long as this lives."""
    version: int
    image: torch.Size

    def is_of(self, weight: Tensor, image: torch.Size) -> bool:
        return (
            self.source.data_ptr() == weight.data_ptr()
            and self.version == weight._version
            and self.image == image
        )


class PackedConv2d(nn.Conv2d):
    """An nn.Conv2d that, for inference on the CPU, keeps its kernel as oneDNN wants it.

    A plain one lays its kernel out anew in each call, which takes its time where kernels are large
    and batches small. The packed kernel is made in the first call and again when `weight` or
    the size of the images is another; it is not part of the state, of a copy or of a pickle. With
    gradients enabled, under autocast, in another precision, on another device and where torch
    traces, compiles or counts, this is a plain convolution. Only a write through `weight.data`
    goes unseen.
    """

    _packed: _Packed | None = None

    def forward(self, input: Tensor) -> Tensor:
        if not self._packs(input):
            return super().forward(input)
        return _convolution(input, self._kernel(input), self.bias, *_geometry(self))

    def _packs(self, x: Tensor) -> bool:
        return (
            type(x) is Tensor  # not what stands for one where code is traced
            and x.dim() == 4
            and x.dtype is self.weight.dtype is torch.float32
            and x.device.type == self.weight.device.type == "cpu"
            and bool(torch.backends.mkldnn.enabled)
            and not torch.is_grad_enabled()
            and not torch.is_autocast_enabled("cpu")
            and not _is_watched()
            and not self.weight.is_inference()  # which does not tell when it changes
        )

    def _kernel(self, x: Tensor) -> Tensor:
        packed = self._packed
        if packed is None or not packed.is_of(self.weight, x.shape[1:]):
            source = self.weight.detach()
            packed = _Packed(_pack(self, x), source, self.weight._version, x.shape[1:])
            self._packed = packed
        return packed.kernel

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_packed"}


def _geometry(conv: nn.Conv2d) -> tuple[Any, ...]:
    padding = (0, 0) if conv.padding == "valid" else conv.padding
    return padding, conv.stride, conv.dilation, conv.groups


# The names below are private to torch, which calls them itself in compiled code.


def _is_watched() -> bool:
    """Whether something looks at the operations themselves: a tracer, a counter of FLOPs."""
    return (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()  # type: ignore[attr-defined,no-untyped-call]
        or _get_current_dispatch_mode() is not None
    )


def _pack(conv: nn.Conv2d, x: Tensor) -> Tensor:
    kernel = conv.weight.detach().to_mkldnn()
    reorder: Any = torch._C._nn.mkldnn_reorder_conv2d_weight
    packed: Tensor = reorder(kernel, *_geometry(conv), x.shape)
    return packed


def _convolution(x: Tensor, kernel: Tensor, bias: Tensor | None, *geometry: Any) -> Tensor:
    output: Tensor = torch.ops.mkldnn._convolution_pointwise.default(
        x, kernel, bias, *geometry, "none", [], ""
    )
    return output


@functools.cache
def _can_pack() -> bool:
    """Whether this build of torch has all that is needed, by a trial."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    with torch.random.fork_rng(devices=[]), torch.inference_mode(False), torch.no_grad():
        conv = nn.Conv2d(2, 3, 3, padding=1, stride=2, device="cpu", dtype=torch.float32)
        x = torch.ones(1, 2, 5, 5, device="cpu", dtype=torch.float32)
        try:
            output = _convolution(x, _pack(conv, x), conv.bias, *_geometry(conv))
        except (AttributeError, RuntimeError, TypeError):
            return False
        return torch.allclose(output, conv(x), atol=1e-5)
