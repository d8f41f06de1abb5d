"""IncrementalStrategy: a method of `aanets_plugin.baselines` as an Avalanche strategy."""

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import torch.nn.functional as F
from avalanche.benchmarks.utils.utils import concat_datasets
from avalanche.training.templates import SupervisedTemplate
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from aanets_plugin.alpha_gradient import unwrapped
from aanets_plugin.baselines.lifecycle import (
    Features,
    MethodLoss,
    features_of,
    fine_tuning,
    grow_head,
    sgd,
    teacher_of,
    train_epoch,
)
from aanets_plugin.baselines.method import Method, Output, Rule
from aanets_plugin.baselines.network import feature_count
from aanets_plugin.baselines.prediction import class_means, flips_horizontally, nearest_mean
from aanets_plugin.errors import ConfigurationError, NonFiniteLossError

from .compat import repair_checkpoints
from .herding import HerdedBuffer
from .network import BenchmarkNet, benchmark_net, replace_parameters, take_head_off
from .support import check_new_classes


class IncrementalStrategy(SupervisedTemplate):  # type: ignore[misc]
    """Base class of the methods as Avalanche strategies; use one of its subclasses.

    The classifier of the model is replaced by the method's head, which grows at the beginning of
    each experience. Logits are indexed by the class ids of the benchmark, in any order. Training
    uses the loss of the method, evaluation the cross-entropy.

    After each experience, exemplars of its classes are herded into `storage_policy`. They are added
    to the training data of later experiences, and AANetPlugin uses them for the old classes.

    Every experience must have new classes only. The optimizer keeps its settings and parameter
    groups; the head is in the group of the classifier that it replaces. The optimizer's state is
    reset in each experience, unless `train` is called with `reset_optimizer_state=False`.

    Args:
        model: A network with a classifier as its last layer, or one that returns features. It is
            changed in place. An IncrementalNet keeps its head, which must be the method's head for
            the first experience.
        method: Hyperparameters, an instance of the class of the same name in
            `aanets_plugin.baselines`.
        mem_size_per_class: Exemplars per class. Default: 20, if `mem_size` is None.
        mem_size: Exemplars in total.
        predict_by: "head" or "nearest_mean", the nearest mean of the exemplars' features. The
            nearest mean does not predict the classes of an experience before its end. It uses
            mirrored exemplars too, if the training transforms have a RandomHorizontalFlip.
        eval_mb_size: Batch size of evaluation. Default: `train_mb_size`.
        base_kwargs: The other arguments of Avalanche's SupervisedTemplate: `train_mb_size`,
            `train_epochs`, `device`, `plugins`, `evaluator` and so on.
    """

    method_type: ClassVar[type[Method]]
    exemplar_transform: Callable[[Tensor], Tensor] | None = None

    def __init__(
        self,
        *,
        model: nn.Module,
        optimizer: Optimizer,
        method: Method | None = None,
        mem_size_per_class: int | None = None,
        mem_size: int | None = None,
        predict_by: Rule = "head",
        eval_mb_size: int | None = None,
        **base_kwargs: Any,
    ) -> None:
        repair_checkpoints()
        name = self.method_type.__name__
        self.method = self.method_type() if method is None else method
        if not isinstance(self.method, self.method_type):
            raise ConfigurationError(
                f"method={method!r:.80}: must be an aanets_plugin.baselines.{name}, which has the "
                f"hyperparameters. Pass method=baselines.{name}()."
            )
        if predict_by not in ("head", "nearest_mean"):
            raise ConfigurationError(
                f"predict_by={predict_by!r}: must be 'head' or 'nearest_mean'."
            )
        self.predict_by = predict_by
        self.storage_policy = HerdedBuffer(mem_size_per_class, mem_size)
        self.teacher: BenchmarkNet | None = None
        net = benchmark_net(model)
        self._old_head: list[nn.Parameter] = []
        self._out: Output | None = None
        self._means: tuple[Tensor, ...] | None = None
        self._flips = False
        self._workers = 0
        super().__init__(
            model=net,
            optimizer=optimizer,
            criterion=nn.CrossEntropyLoss(),
            eval_mb_size=eval_mb_size,
            **base_kwargs,
        )

    @property
    def net(self) -> BenchmarkNet:
        """The network without its wrappers, such as DistributedDataParallel."""
        net = unwrapped(self.model)
        assert isinstance(net, BenchmarkNet)
        return net

    # -- an experience begins --------------------------------------------------------------------

    def train_dataset_adaptation(self, **kwargs: Any) -> None:
        """Train on the new data and the exemplars."""
        self._workers = kwargs.get("num_workers", 0)
        known = self.net.classes
        check_new_classes(self.experience, known)
        self.storage_policy.of_each(len({*known, *self.experience.classes_in_this_experience}))
        super().train_dataset_adaptation(**kwargs)
        self._flips = flips_horizontally(list(training_transforms(self.experience.dataset)))
        if self.storage_policy.groups:
            parts = self.experience.dataset, self.storage_policy.buffer
            self.adapted_dataset = concat_datasets([part.train() for part in parts])

    def check_model_and_optimizer(self, reset_optimizer_state: bool = True, **kwargs: Any) -> None:
        """As in Avalanche, but the state of the optimizer is reset unless told otherwise."""
        super().check_model_and_optimizer(reset_optimizer_state=reset_optimizer_state, **kwargs)

    def model_adaptation(self, model: nn.Module | None = None) -> nn.Module:
        """In training, copy the teacher and grow the head."""
        adapted: nn.Module = super().model_adaptation(model)
        if adapted is self.model:
            ids = sorted(self.experience.classes_in_this_experience)
            if self.is_training:
                self._grow(ids)
            else:
                self.net.widen(ids)
        return adapted

    def _grow(self, ids: list[int]) -> None:
        net, data = self.net, self.experience.dataset
        if net.classes:
            self.teacher = teacher_of(net)
            samples = self.features(data)
            net.add_classes(ids)
            samples = samples._replace(labels=net.columns.cpu()[samples.labels])
            grow_head(self.method, net, len(ids), samples)
        else:
            shape = tuple(data.eval()[0][0].shape)
            self._old_head = take_head_off(net, shape)
            net.fc = self._first_head(len(ids), shape).to(self.device)
            net.add_classes(ids)
        new = list(net.fc.parameters())
        replace_parameters(self.optimizer, self._old_head, new)
        self.optimized_param_id = dict(self.model.named_parameters())
        self._old_head = new

    def _first_head(self, classes: int, input_shape: tuple[int, ...]) -> nn.Module:
        net = self.net
        head = self.method.head(feature_count(net.backbone, input_shape), classes)
        if isinstance(net.fc, nn.Identity):
            return head
        if repr(net.fc) != repr(head):
            raise ConfigurationError(
                f"the IncrementalNet has the head {net.fc}: must be {head} for the first "
                f"experience. Pass the backbone alone to have the head created."
            )
        return net.fc

    # -- a batch ---------------------------------------------------------------------------------

    def forward(self) -> Tensor:
        """Return logits by class id; for prediction by nearest mean, one-hot vectors."""
        if self.is_training:
            self._out = self.method.observe(self.net, self.mb_x, maps=self.teacher is not None)
            return self.net.by_id(self._out.logits)
        if self._means is None:
            return self.model(self.mb_x)  # type: ignore[no-any-return]
        nearest = nearest_mean(self.net.features(self.mb_x), *self._means)
        return F.one_hot(nearest, len(self.net.columns)).float()

    def criterion(self) -> Tensor:
        """Return the method's loss in training, the cross-entropy in evaluation."""
        if not self.is_training:
            return super().criterion()  # type: ignore[no-any-return]
        loss = MethodLoss(self.method, self.net, self.teacher)
        return loss(self.mb_x, self.net.columns[self.mb_y], self._out)  # type: ignore[no-any-return]

    def _before_eval(self, **kwargs: Any) -> None:
        if self.predict_by == "nearest_mean" and self.storage_policy.groups:
            exemplars = self.features(self.storage_policy.buffer, flip=self._flips)
            self._means = tuple(part.to(self.device) for part in class_means(*exemplars))
        super()._before_eval(**kwargs)

    def _after_eval(self, **kwargs: Any) -> None:
        self._means = None
        super()._after_eval(**kwargs)

    # -- an experience ends ----------------------------------------------------------------------

    def _after_training_epoch(self, **kwargs: Any) -> None:
        if not self.loss.isfinite():
            raise NonFiniteLossError(
                f"The training loss is {self.loss.item()} in experience "
                f"{self.experience.current_experience}, epoch {self.clock.train_exp_epochs}. Lower "
                f"the learning rate."
            )
        super()._after_training_epoch(**kwargs)

    def _after_training_exp(self, **kwargs: Any) -> None:
        """Store exemplars and fine-tune, before plugins evaluate or copy the network."""
        first = self.teacher is None
        self._out = self.teacher = None
        self.storage_policy.post_adapt(self, self.experience)
        if self.method.learns_exemplars:
            validation = self._loader(self.experience.dataset.eval(), shuffle=True)

            def learn(images: Tensor, labels: Tensor, bounds: tuple[Tensor, Tensor]) -> Tensor:
                return self.method.refine(self.net, images, labels, validation, bounds)

            new = self.experience.classes_in_this_experience
            self.storage_policy.refine(new, learn, self.exemplar_transform)
        if not first:
            self._fine_tune()
        super()._after_training_exp(**kwargs)

    def _fine_tune(self) -> None:
        """Fine-tune if the method does so, with the momentum and weight decay of the optimizer."""
        net, settings = self.net, self.optimizer.param_groups[0]
        loader = self._loader(self.storage_policy.buffer.train(), shuffle=True)
        with fine_tuning(self.method, net) as (loss, rates):
            momentum, decay = settings.get("momentum", 0.9), settings.get("weight_decay", 0.0)
            optimizer = sgd(loss.train(), momentum, decay)
            for lr in rates:
                moved = ((x.to(self.device), y.to(self.device)) for x, y, *_ in loader)
                train_epoch(loss, optimizer, lr, ((x, net.columns[y]) for x, y in moved))

    # -- data ------------------------------------------------------------------------------------

    def features(self, data: Any, *, flip: bool = False) -> Features:
        """Compute features and class ids of all samples with the transforms of evaluation."""
        return features_of(self.net, self._loader(data.eval()), flip=flip)

    def _loader(self, data: Any, shuffle: bool = False) -> DataLoader[Any]:
        size = self.train_mb_size if shuffle else self.eval_mb_size
        return DataLoader(data, batch_size=size, shuffle=shuffle, num_workers=self._workers)


def training_transforms(data: Any) -> Iterator[Any]:
    """Yield the transforms that an Avalanche dataset applies in training, also to its parts."""
    data = getattr(data, "_flat_data", data)
    for groups in ("_frozen_transform_groups", "_transform_groups"):
        if hasattr(data, groups):
            yield getattr(data, groups)["train"]
    yield getattr(data, "transform", None)  # of a torchvision dataset
    for part in getattr(data, "_datasets", []):
        yield from training_transforms(part)
