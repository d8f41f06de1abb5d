"""Mnemonics (Liu et al., CVPR 2020): exemplars with learned pixels, and the method.

The pixels of the exemplars are changed so that a network fine-tuned on them has a low loss on the
data they represent. This alternates with the training of the network. At the end of a phase the
network is fine-tuned on the exemplars alone, which are class-balanced:

    exemplars = ...                            # a random or herded subset of the new data
    for epoch in range(epochs):
        train_one_epoch(model, new_data_and_exemplars)
        exemplars = refine_exemplars(model, exemplars, labels, new_data_loader)
    # The old data are gone. Split the old exemplars into two halves with all classes in both, and
    # use each half as validation data of the other.
    a = refine_exemplars(model, old_a, labels_a, [(old_b, labels_b)])
    b = refine_exemplars(model, old_b, labels_b, [(old_a, labels_a)])
    finetune_on_exemplars(model, all_exemplars, all_labels)

Images are inputs of the network, that is, normalized; `bounds` are in the same scale.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from aanets_plugin.baselines.lifecycle import requires_grad, sgd, train_epoch
from aanets_plugin.baselines.lucir import LUCIR
from aanets_plugin.baselines.method import FineTuning
from aanets_plugin.baselines.network import IncrementalNet
from aanets_plugin.checks import check_positive
from aanets_plugin.default_loss import logits_of
from aanets_plugin.errors import ConfigurationError
from aanets_plugin.exemplars import permutation
from aanets_plugin.field_checks import Count, CountOrZero, Positive
from aanets_plugin.modes import evaluating

LossFunction = Callable[[Any, Tensor], Tensor]
"""`loss_fn(outputs, labels)`: the mean loss of a batch."""


@dataclasses.dataclass(frozen=True)
class Mnemonics(LUCIR):
    """Mnemonics with LUCIR's losses: exemplars are learned, and the head is fine-tuned on them.

    The steps and learning rates of the exemplars, and the fine-tuning of the head alone, are our
    choice. The published settings do not work for 8-bit exemplars and small memories.
    """

    name: ClassVar[str] = "mnemonics"
    title: ClassVar[str] = "Mnemonics"
    learns_exemplars: ClassVar[bool] = True

    refine_steps: Count = 20
    refine_lr: Positive = 2e-3
    inner_lr: Positive = 1.0
    inner_steps: Count = 5
    refine_batch: Count = 100
    finetune_epochs: CountOrZero = 10
    finetune_lr: Positive = 0.05

    @property
    def fine_tuning(self) -> FineTuning | None:
        """Epochs and learning rate for the head; None with `finetune_epochs=0`."""
        return FineTuning(self.finetune_epochs, self.finetune_lr) if self.finetune_epochs else None

    def refine(
        self,
        net: IncrementalNet,
        images: Tensor,
        labels: Tensor,
        validation: Iterable[Sequence[Any]],
        bounds: tuple[Tensor, Tensor],
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Return what `refine_exemplars` learns from `images`; see `Method.refine`."""
        return refine_exemplars(
            net,
            images,
            labels,
            validation,
            steps=self.refine_steps,
            lr=self.refine_lr,
            inner_lr=self.inner_lr,
            inner_steps=self.inner_steps,
            head="fc",
            bounds=bounds,
            batch_size=min(self.refine_batch, len(images)),
            generator=generator,
        )


def cross_entropy(outputs: Any, labels: Tensor) -> Tensor:
    """Cross-entropy of logits, or of a dict with `"logits"`."""
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
    """Return exemplars on which fine-tuning works better. `model` and `images` do not change.

    Each step fine-tunes a copy of the network on the exemplars, computes the loss of a validation
    batch, and moves the pixels along the negative gradient of that loss.

    Args:
        images: Exemplars, floating point [exemplars, …].
        validation: Batches `(x, y, …)`. Each step uses one; after the last it starts again.
        steps, lr, momentum: SGD on the pixels.
        normalize: Scale the gradient of each image to a root mean square of 1, so that `lr` is the
            size of a step in the scale of `images`. Without it the gradient is so small that 8-bit
            images do not change.
        inner_steps, inner_lr: The fine-tuning. With one small step, images become hard rather than
            typical. A few large steps keep them suitable for nearest means as well.
        head: Names of the modules to fine-tune. None: the whole network.
        bounds: Lowest and highest value of a pixel, numbers or tensors such as [channels, 1, 1].
        batch_size: Exemplars per step, drawn at random with `generator`. Default: all.
        loss_fn: `loss_fn(outputs, labels)` returns the mean loss of a batch.

    Examples:
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(12, 2))
        >>> images, labels = torch.rand(4, 3, 2, 2), torch.tensor([0, 0, 1, 1])
        >>> batches = [(torch.rand(8, 3, 2, 2), torch.arange(8) % 2)]
        >>> refined = refine_exemplars(model, images, labels, batches, head="1", bounds=(0, 1))
        >>> refined.shape
        torch.Size([4, 3, 2, 2])
    """
    _check_exemplars(images, labels)
    check_positive(steps=steps, inner_steps=inner_steps, lr=lr, inner_lr=inner_lr)
    _head_of(model, head)  # checks the names
    batch_size = len(images) if batch_size is None else batch_size
    if not 1 <= batch_size <= len(images):
        raise ConfigurationError(
            f"batch_size={batch_size} of {len(images)} exemplars: must be 1 to {len(images)}."
        )
    refined = images.detach().clone()
    like: Any = {"dtype": images.dtype, "device": images.device}
    low, high = (torch.as_tensor(b, **like) for b in bounds) if bounds else (None, None)
    velocity = torch.zeros_like(refined)
    batches = _endless(validation)
    for _ in range(steps):
        rows = torch.arange(len(images))  # draws no random numbers
        if batch_size < len(images):
            rows = permutation(len(images), generator)[:batch_size]
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
            size = gradient.flatten(1).square().mean(dim=1).sqrt().clamp_min(1e-30)
            gradient = gradient / size.reshape(-1, *[1] * (gradient.ndim - 1))
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
    """Return the gradient of the loss on `batch` with respect to `images`, and that loss.

    The loss is that of the network after fine-tuning on `images`. Everything runs in eval mode and
    on copies: the parameters, buffers, gradients and modes of `model` do not change. The arguments
    are those of `refine_exemplars`.
    """
    _, names = _head_of(model, head)
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
                loss_of(pixels, y), list(fast.values()), create_graph=True, allow_unused=True
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
    """Train the model in place on exemplars alone; returns the mean loss of the last epoch.

    With `head`, only the modules of these names learn, and the others run in eval mode. Gradients,
    `requires_grad` flags and train/eval modes are restored afterwards.
    """
    _check_exemplars(images, labels)
    check_positive(epochs=epochs, lr=lr, batch_size=batch_size)
    modules, names = _head_of(model, head)
    others = [parameter for name, parameter in model.named_parameters() if name not in names]
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    device = next(model.parameters()).device

    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        return loss_fn(model(x.detach().to(device)), y.to(device))

    with torch.enable_grad(), evaluating(model), requires_grad(others, False):
        optimizer = sgd(model, momentum, weight_decay)
        try:
            for module in modules:
                module.train()
            for _ in range(epochs):
                order = permutation(len(images), generator)
                batches = [
                    (images[rows.to(images.device)], labels[rows.to(labels.device)])
                    for rows in torch.split(order, batch_size)
                ]
                losses = train_epoch(loss_of, optimizer, lr, batches)
        finally:
            for parameter, gradient in gradients:
                parameter.grad = gradient
    total = sum(float(loss) * len(y) for loss, (_, y) in zip(losses, batches, strict=True))
    return total / len(images)


def _head_of(
    model: nn.Module, head: str | Sequence[str] | None
) -> tuple[list[nn.Module], list[str]]:
    """Return the modules to fine-tune, and the names of their parameters that learn."""
    known = dict(model.named_modules())  # the model itself has the name ""
    names = [head or ""] if head is None or isinstance(head, str) else list(head)
    if not names or not known.keys() >= set(names):
        children = ", ".join(name for name, _ in model.named_children())
        raise ConfigurationError(
            f"head={head!r}: must name modules of the {type(model).__name__}. Its children are "
            f"{children}. Pass dotted names, or None for the whole network."
        )
    modules = [known[name] for name in names]
    inside = {id(p) for module in modules for p in module.parameters() if p.requires_grad}
    learning = [name for name, p in model.named_parameters() if id(p) in inside]
    if not learning:
        raise ConfigurationError(
            f"head={head!r}: nothing learns there. Pass modules with parameters that require a "
            f"gradient."
        )
    return modules, learning


def _check_exemplars(images: Tensor, labels: Tensor) -> None:
    if not images.is_floating_point() or not len(images) or labels.shape != images.shape[:1]:
        raise ConfigurationError(
            f"images has the shape {tuple(images.shape)} and the dtype {images.dtype}, labels the "
            f"shape {tuple(labels.shape)}: must be floating point [exemplars, …], as the model "
            f"takes them, and [exemplars]."
        )


def _endless(validation: Iterable[Sequence[Any]]) -> Iterator[Sequence[Any]]:
    while True:
        empty = True
        for batch in validation:
            empty = False
            if not isinstance(batch, (tuple, list)) or len(batch) < 2:
                raise ConfigurationError(
                    f"a validation batch is a {type(batch).__name__}: must be (x, y, …). For a "
                    f"single batch pass [(x, y)]."
                )
            yield batch
        if empty:
            raise ConfigurationError(
                f"validation, a {type(validation).__name__}, has run out of batches: must be a "
                f"list or loader that can be read more than once."
            )
