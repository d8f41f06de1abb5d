"""Mnemonics (Liu et al., CVPR 2020): the pixels of the exemplars are learned.

Two levels take turns in a phase. The model level is a network's usual training on the new data and
the exemplars, by whatever baseline; the exemplar level changes the exemplars so that a network
fine-tuned on them does well on data they stand for. At the end of the phase the network is
fine-tuned on the exemplars alone, which are balanced:

    exemplars = …                                      # a random or herded subset of the new data
    for epoch in range(epochs):
        train_one_epoch(model, new_data_and_exemplars)                             # model level
        exemplars = refine_exemplars(model, exemplars, labels, new_data_loader)    # exemplar level
    # The old data are gone, so the old exemplars, in two halves with every class in both, are
    # each other's validation data.
    a = refine_exemplars(model, old_a, labels_a, [(old_b, labels_b)])
    b = refine_exemplars(model, old_b, labels_b, [(old_a, labels_a)])
    finetune_on_exemplars(model, all_exemplars, all_labels)                        # model level

Images are as the model takes them, normalised; `bounds` are in that scale as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from aanets_plugin.alpha_gradient import logits_of
from aanets_plugin.errors import ConfigurationError
from aanets_plugin.modes import evaluating
from aanets_plugin.optim import parameter_groups

LossFunction = Callable[[Any, Tensor], Tensor]
"""`loss_fn(outputs, labels)`: the mean loss of a batch."""


def cross_entropy(outputs: Any, labels: Tensor) -> Tensor:
    """Of logits, or of a dict's `"logits"`."""
    return F.cross_entropy(logits_of(outputs), labels)


def refine_exemplars(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    validation: Iterable[Sequence[Any]],
    *,
    steps: int = 20,
    lr: float = 2e-3,
    momentum: float = 0.9,
    normalize: bool = True,
    inner_lr: float = 1.0,
    inner_steps: int = 5,
    head: str | Sequence[str] | None = "fc",
    bounds: tuple[float | Tensor, float | Tensor] | None = None,
    batch_size: int | None = None,
    generator: torch.Generator | None = None,
    loss_fn: LossFunction = cross_entropy,
) -> Tensor:
    """Exemplars that make a better network of one that is fine-tuned on them; `model` and `images`
    stay as they are.

    Args:
        images: `[exemplars, …]`, floating point; labels `[exemplars]`.
        validation: batches `(x, y, …)`, one per step, from the start again when they run out.
        steps: how often the images are moved, by SGD with `lr` and `momentum`.
        normalize: scale each image's gradient to a root mean square of one, so that `lr` is how far
            a step moves a pixel, in the scale of `images`. The gradient through a fine-tuning step
            is so small that images stay as they are otherwise.
        inner_steps: steps of gradient descent with `inner_lr` on the exemplars, through which the
            validation loss is differentiated. Through one small step, images change to be hard
            rather than typical; a few large ones keep them good for nearest means too.
        head: names of the modules that these steps change; None for the whole network.
        bounds: lowest and highest value of a pixel, numbers or tensors such as `[channels, 1, 1]`.
        batch_size: how many exemplars to take in a step, drawn anew each time. Default: all.

    Example:
        >>> low, high = (0 - mean) / std, (1 - mean) / std
        >>> exemplars = refine_exemplars(model, exemplars, labels, loader, bounds=(low, high))
    """
    _check_exemplars(images, labels)
    _check_positive(steps=steps, inner_steps=inner_steps, lr=lr, inner_lr=inner_lr)
    _head_parameters(model, head)
    batch_size = len(images) if batch_size is None else batch_size
    if not 1 <= batch_size <= len(images):
        raise ConfigurationError(
            f"batch_size={batch_size} of {len(images)} exemplars; expected 1 to {len(images)}"
        )
    low, high = (None, None) if bounds is None else (_like(images, bound) for bound in bounds)
    refined = images.detach().clone()
    velocity = torch.zeros_like(refined)
    batches = _endless(validation)
    for _ in range(steps):
        # Without batches no random number is drawn.
        rows = torch.arange(len(images))
        if batch_size < len(images):
            rows = _order(len(images), generator)[:batch_size]
        rows = rows.to(refined.device)
        gradient, _ = exemplar_gradient(
            model,
            refined[rows],
            labels[rows.to(labels.device)],
            next(batches),
            inner_lr=inner_lr,
            inner_steps=inner_steps,
            head=head,
            loss_fn=loss_fn,
        )
        if normalize:
            gradient = _unit_scale(gradient)
        velocity[rows] = momentum * velocity[rows] + gradient
        refined[rows] -= lr * velocity[rows]
        if bounds is not None:
            refined = torch.clamp(refined, low, high)
    return refined


def exemplar_gradient(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    batch: Sequence[Any],
    *,
    inner_lr: float,
    inner_steps: int = 1,
    head: str | Sequence[str] | None = "fc",
    loss_fn: LossFunction = cross_entropy,
) -> tuple[Tensor, float]:
    """The gradient by `images` of the loss on `batch` after fine-tuning on them, and that loss.

    Everything runs in eval mode on tensors of its own. The model's parameters, buffers, gradients
    and mode flags are the same afterwards.
    """
    names = _head_parameters(model, head)
    weights = {name: p.detach() for name, p in model.named_parameters()}
    buffers = {name: b.clone() for name, b in model.named_buffers()}
    device = next(model.parameters()).device
    y = labels.to(device)

    def loss_of(inputs: Tensor, classes: Tensor) -> Tensor:
        return loss_fn(functional_call(model, (weights, buffers), (inputs,)), classes)

    with torch.enable_grad(), evaluating(model):
        pixels = images.detach().to(device).requires_grad_()
        fast = {name: weights[name].requires_grad_() for name in names}
        for _ in range(inner_steps):
            weights.update(fast)
            slopes = torch.autograd.grad(
                loss_of(pixels, y),
                list(fast.values()),
                create_graph=True,
                allow_unused=True,
            )
            fast = {
                name: value if slope is None else value - inner_lr * slope
                for (name, value), slope in zip(fast.items(), slopes, strict=True)
            }
        weights.update(fast)
        loss = loss_of(batch[0].to(device), batch[1].to(device))
        (gradient,) = torch.autograd.grad(loss, pixels)
    return gradient.to(images.device), float(loss.detach())


def finetune_on_exemplars(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    epochs: int = 20,
    lr: float = 1e-2,
    momentum: float = 0.9,
    weight_decay: float = 5e-4,
    batch_size: int = 128,
    head: str | Sequence[str] | None = None,
    generator: torch.Generator | None = None,
    loss_fn: LossFunction = cross_entropy,
) -> float:
    """Train the model in place on its exemplars alone; gives the mean loss of the last epoch.

    With `head`, only the modules of these names learn, and batch statistics stay as they are. The
    optimizer is its own; gradients and mode flags are given back as they were.
    """
    _check_exemplars(images, labels)
    _check_positive(epochs=epochs, lr=lr, batch_size=batch_size)
    names = set(_head_parameters(model, head))
    learned = {id(p) for name, p in model.named_parameters() if name in names}
    groups = parameter_groups(model, lr, weight_decay)
    for group in groups:
        group["params"] = [p for p in group["params"] if id(p) in learned]
    optimizer = torch.optim.SGD(groups, lr=lr, momentum=momentum)
    gradients = [(p, p.grad) for p in model.parameters()]
    device = next(model.parameters()).device
    total = 0.0
    with torch.enable_grad(), evaluating(model):
        try:
            for module in [model] if head is None else _modules(model, head):
                module.train()
            for _ in range(epochs):
                total = 0.0
                for rows in torch.split(_order(len(images), generator), batch_size):
                    x, y = images[rows.to(images.device)], labels[rows.to(labels.device)]
                    model.zero_grad(set_to_none=True)
                    loss = loss_fn(model(x.detach().to(device)), y.to(device))
                    loss.backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
                    total += float(loss.detach()) * len(rows)
        finally:
            for parameter, gradient in gradients:
                parameter.grad = gradient
    return total / len(images)


def _modules(model: nn.Module, head: str | Sequence[str]) -> list[nn.Module]:
    modules = dict(model.named_modules())
    names = [head] if isinstance(head, str) else list(head)
    unknown = [name for name in names if name not in modules]
    if unknown or not names:
        children = ", ".join(name for name, _ in model.named_children())
        raise ConfigurationError(
            f"head={head!r}: a {type(model).__name__} has no module of that name; its children are "
            f"{children}. Give dotted names, or None for the whole network."
        )
    return [modules[name] for name in names]


def _head_parameters(model: nn.Module, head: str | Sequence[str] | None) -> list[str]:
    """Names of the parameters that learn in the modules of these names, or anywhere."""
    modules = [model] if head is None else _modules(model, head)
    inside = {id(p) for module in modules for p in module.parameters() if p.requires_grad}
    names = [name for name, p in model.named_parameters() if id(p) in inside]
    if not names:
        raise ConfigurationError(
            f"head={head!r}: nothing learns there; expected modules with parameters that require "
            f"a gradient"
        )
    return names


def _check_exemplars(images: Tensor, labels: Tensor) -> None:
    if not images.is_floating_point() or not len(images) or labels.shape != images.shape[:1]:
        raise ConfigurationError(
            f"images has the shape {tuple(images.shape)} and the dtype {images.dtype}, labels the "
            f"shape {tuple(labels.shape)}; expected floating point [exemplars, …], as the model "
            f"takes them, and [exemplars]"
        )


def _check_positive(**options: float) -> None:
    for name, value in options.items():
        if not value > 0:
            raise ConfigurationError(f"{name}={value}; expected more than 0")


def _endless(validation: Iterable[Sequence[Any]]) -> Iterator[Sequence[Any]]:
    while True:
        empty = True
        for batch in validation:
            empty = False
            if not isinstance(batch, (tuple, list)) or len(batch) < 2:
                raise ConfigurationError(
                    f"a validation batch is a {type(batch).__name__}; expected (x, y, …); for a "
                    f"single batch pass [(x, y)]"
                )
            yield batch
        if empty:
            raise ConfigurationError(
                f"validation, a {type(validation).__name__}, has run out of batches; expected a "
                f"list or loader that can be read again and again"
            )


def _order(count: int, generator: torch.Generator | None) -> Tensor:
    device = "cpu" if generator is None else generator.device
    return torch.randperm(count, generator=generator, device=device).cpu()


def _unit_scale(gradient: Tensor) -> Tensor:
    """Each image's divided by its root mean square; zero stays zero."""
    size = gradient.flatten(1).square().mean(dim=1).sqrt()
    return gradient / size.clamp_min(1e-30).reshape(-1, *[1] * (gradient.ndim - 1))


def _like(images: Tensor, bound: float | Tensor) -> Tensor:
    return torch.as_tensor(bound, dtype=images.dtype, device=images.device)
