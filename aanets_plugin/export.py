"""export_onnx: a model as an ONNX file for inference, checked against torch."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from aanets_plugin.errors import ConfigurationError, UnsupportedModelError
from aanets_plugin.extras import needs
from aanets_plugin.files import replacing
from aanets_plugin.fold import fold
from aanets_plugin.modes import evaluating

TOLERANCE = 1e-3
"""The largest relative error of an output that still is rounding in float32."""


def export_onnx(model: nn.Module, file: str | os.PathLike[str], example: Tensor) -> float:
    """Write `model` to the ONNX file `file` for inference, in float32 and for any batch size.

    The model is folded: φ is multiplied into the kernels, BatchNorm is fused where possible, and α
    is a constant. The input is called "images", the outputs "output", or by their keys and places
    if the model returns a dict or a list. The file is run by ONNX Runtime on batches of two sizes
    before it is kept. `model` does not change; it may be a plain network, too.

    Args:
        model: The model.
        file: The file to write.
        example: A batch of images.

    Returns:
        The largest relative error of an output against `model`.

    Example::

        error = export_onnx(model, "model.onnx", torch.randn(2, 3, 32, 32))
        session = onnxruntime.InferenceSession("model.onnx")
        (logits,) = session.run(None, {"images": images.numpy()})
    """
    for package in ("onnx", "onnxscript", "onnxruntime"):
        needs(package, "onnx")
    if not isinstance(example, Tensor) or example.dim() < 2 or not len(example):
        raise ConfigurationError(
            f"example={type(example).__name__}: must be a batch of images as a tensor, such as "
            f"torch.randn(2, 3, 32, 32)."
        )
    with torch.no_grad(), evaluating(model):
        # Two of them, since the size 1 would be a constant in the graph.
        batch = torch.cat([example[:1], example[-1:]])
        named = dict(_named(model(batch.clone())))
        expected = [v.float().cpu() for v in named.values()]
    if not expected:
        raise UnsupportedModelError(f"{type(model).__name__} returns no tensor.")
    flat = _Flat(fold(model).float().cpu()).eval()
    batch = batch.detach().float().cpu()
    with replacing(Path(file)) as temporary:
        _export(flat, batch, list(named), temporary)
        error = _error(temporary, batch, expected)
        if not error < TOLERANCE:
            raise UnsupportedModelError(
                f"ONNX Runtime computes other outputs than {type(model).__name__}: the relative "
                f"error is {error:.2g}, must be < {TOLERANCE:g}. No file was written. Check that "
                f"the forward of the model does not depend on the values of its input."
            )
    return error


class _Flat(nn.Module):
    """The model with all tensors of its output in a tuple."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        return tuple(value for _, value in _named(self.model(images)))


def _named(output: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """The tensors of an output and their names, such as "output", "logits" or "maps_0"."""
    if isinstance(output, Tensor):
        yield name or "output", output
        return
    if isinstance(output, (tuple, list)):
        fields = getattr(output, "_fields", None)
        output = dict(zip(fields, output, strict=True)) if fields else dict(enumerate(output))
    if isinstance(output, Mapping):
        for key, value in output.items():
            prefix = name or ("" if isinstance(key, str) else "output")
            yield from _named(value, f"{prefix}_{key}" if prefix else str(key))


def _export(flat: nn.Module, batch: Tensor, names: list[str], file: Path) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the exporter, about itself
            program: Any = torch.onnx.export(
                flat,
                (batch,),
                dynamo=True,
                dynamic_shapes=({0: torch.export.Dim("batch")},),
                input_names=["images"],
                output_names=names,
                verbose=False,
            )
        program.save(file)
    except Exception as error:  # the exporter raises many types
        reason = str(error).strip().partition("\n")[0]
        raise UnsupportedModelError(
            f"{type(flat.model).__name__} cannot be exported ({type(error).__name__}: {reason}). "
            f"torch.export must be able to trace its forward."
        ) from error


def _error(file: Path, batch: Tensor, expected: list[Tensor]) -> float:
    """The largest relative error of the file's outputs, for this batch and for its parts."""
    onnxruntime = needs("onnxruntime", "onnx")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    errors = []
    for part in (slice(None), slice(1), slice(1, None)):
        try:
            outputs = session.run(None, {"images": batch[part].numpy()})
        except Exception as error:  # of ONNX Runtime, which has types of its own
            raise UnsupportedModelError(
                f"The exported model does not run on a batch of {len(batch[part])} ({error}). The "
                f"forward of the model must not use len(x) or the batch size as a number."
            ) from error
        for found, wanted in zip(map(torch.from_numpy, outputs), expected, strict=True):
            size = wanted[part].norm().clamp_min(1e-12)
            errors.append(float((found - wanted[part]).norm() / size))
    return max(errors)
