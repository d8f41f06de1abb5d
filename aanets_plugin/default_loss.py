"""The default loss of α: cross-entropy for the common forms of batches and model outputs."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aanets_plugin.checks import check_flags, check_function
from aanets_plugin.errors import ConfigurationError
from aanets_plugin.exemplars import targets_of

_INPUTS = ("image", "images", "x", "input", "inputs")
_LABELS = ("label", "labels", "y", "target", "targets")
_WRITE_LOSS_FN = """Pass a loss_fn that reads it, for BilevelStrategy:

    def loss_fn(model, batch):  # the model is in eval mode
        x, y = …
        logits = model(x)
        return torch.nn.functional.cross_entropy(logits, y)"""


def logits_of(outputs: Any) -> Tensor:
    """Return the logits in a model's output.

    They are the output itself, its entry `"logits"`, or the outputs of a list of heads side by
    side. A tuple is refused, since it may be `(logits, features)`.
    """
    logits = outputs.get("logits") if isinstance(outputs, Mapping) else outputs
    if isinstance(logits, list) and logits:
        logits = torch.cat([logits_of(head) for head in logits], dim=1)
    if not isinstance(logits, Tensor) or logits.dim() != 2:
        raise ConfigurationError(
            f"The model returns a {type(outputs).__name__}: must be logits [batch, classes], a "
            f"dict with 'logits' or a list of heads. {_WRITE_LOSS_FN}"
        )
    return logits


def cross_entropy(
    model: nn.Module,
    batch: Any,
    classes: Tensor | None = None,
    logits_of: Callable[[Any], Tensor] = logits_of,
) -> Tensor:
    """Return the mean cross-entropy of a batch. This is the default `loss_fn`.

    Args:
        model: The model, in eval mode.
        batch: `(x, y, …)`, `(index, x, y, …)`, or a dict with, for example, "image" and "label".
        classes: The classes of the balanced data. The logits of other classes, which a head made
            for all classes has before they are seen, are left out. Default: use all logits.
        logits_of: Returns the logits in the model's output.
    """
    x, y = inputs_and_labels(batch)
    if y.dim() == 1:
        y = _class_numbers(y)
    device = next(itertools.chain(model.parameters(), model.buffers())).device
    logits = logits_of(model(x.to(device, non_blocking=True)))
    outputs = logits.shape[1]
    if not y.is_cuda and len(y) and not 0 <= int(y.min()) <= int(y.max()) < outputs:
        raise ConfigurationError(
            f"The balanced batch has labels from {int(y.min())} to {int(y.max())}, but the model "
            f"has {outputs} outputs. Map the labels as the training loop does, or pass a loss_fn."
        )
    if classes is not None and len(classes) < outputs and torch.isin(y.cpu(), classes).all():
        unseen = torch.ones(outputs, dtype=torch.bool)
        unseen[classes[classes < outputs]] = False
        logits = logits.masked_fill(unseen.to(device), -torch.inf)
    return F.cross_entropy(logits, y.to(device, non_blocking=True))


def check_strategy_options(loss_fn: Any, base_phase: Any) -> None:
    """Check the options of a strategy that are not in `AANetConfig`.

    A loss function must take a model and a batch.
    """
    check_flags(base_phase=base_phase)
    check_function(loss_fn, "loss_fn", "loss_fn(model, batch)")
    criterion = str(getattr(loss_fn, "__module__", "")).startswith("torch.nn.")
    try:
        inspect.signature(loss_fn).bind(None, None)
    except TypeError:
        criterion |= loss_fn is not None
    except ValueError:  # a function without a signature
        pass
    if criterion:
        raise ConfigurationError(
            f"loss_fn={loss_fn!r:.80}: must be a function of a model and a batch, not of outputs "
            f"and labels. {_WRITE_LOSS_FN}"
        )


def classes_of(loader: Any) -> Tensor | None:
    """Return the classes in the dataset of a loader without reading samples; None if unknown."""
    dataset = getattr(loader, "dataset", None)
    try:
        return None if dataset is None else torch.unique(targets_of(dataset))
    except Exception:  # labels of a host's dataset may be computed by any code
        return None


def inputs_and_labels(batch: Any) -> tuple[Tensor, Tensor]:
    """Return the inputs and the labels in a batch that has a form of `cross_entropy`."""
    parts: list[Any] = []
    if isinstance(batch, Mapping):
        names = [next((n for n in given if n in batch), None) for given in (_INPUTS, _LABELS)]
        parts = [batch[name] for name in names if name is not None]
    elif isinstance(batch, (tuple, list)):
        # (index, x, y): the inputs of a network have more than one dimension.
        parts = list(batch[1:] if len(batch) > 2 and _is_index(batch[0]) else batch)
    if len(parts) < 2 or not all(isinstance(part, Tensor) for part in parts[:2]):
        raise ConfigurationError(
            f"The balanced batch is {_form_of(batch)}: must be (x, y, …), (index, x, y, …) or a "
            f"dict with 'image' and 'label', of tensors. {_hint(batch, parts)}{_WRITE_LOSS_FN}"
        )
    return parts[0], parts[1]


def _form_of(batch: Any) -> str:
    form = f"a {type(batch).__name__}"
    if isinstance(batch, Mapping):
        return f"{form} with {', '.join(map(repr, batch)) or 'no entries'}"
    if isinstance(batch, (tuple, list)) and batch:
        return f"{form} of {', '.join(type(part).__name__ for part in batch[:4])}"
    return form


def _hint(batch: Any, parts: list[Any]) -> str:
    """What may help, for two common slips."""
    if isinstance(batch, Tensor):
        return "A single batch is passed in a list: [(x, y)]. "
    if len(parts) >= 2 and any(type(part).__module__ == "numpy" for part in parts[:2]):
        return "torch.as_tensor(…) makes a tensor of a numpy array. "
    return ""


def _class_numbers(y: Tensor) -> Tensor:
    """The labels in the type that torch's cross-entropy takes. Other integers mean the same."""
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        raise ConfigurationError(
            f"The labels of the balanced batch are {y.dtype}: must be integers. Pass y.long(), or "
            f"a loss_fn that reads them."
        )
    return y.long()


def _is_index(part: Any) -> bool:
    return isinstance(part, Tensor) and part.dim() == 1 and not part.is_floating_point()
