"""IncrementalStrategy: where in Avalanche's loop the parts of a baseline come in.

Losses, heads and exemplar rules are those of `aanets_plugin.baselines`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from avalanche.benchmarks.utils.utils import concat_datasets
from avalanche.core import SupervisedPlugin
from avalanche.training.plugins.evaluation import EvaluationPlugin, default_evaluator
from avalanche.training.templates import SupervisedTemplate
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from aanets_plugin.alpha_gradient import unwrapped
from aanets_plugin.baselines.method import Method, Output, Rule
from aanets_plugin.baselines.network import feature_count
from aanets_plugin.baselines.prediction import class_means, nearest_mean
from aanets_plugin.errors import ConfigurationError
from aanets_plugin.modes import evaluating

from .compat import repair_checkpoints
from .exemplar_level import fine_tune, learn_exemplars
from .herding import HerdedBuffer
from .network import BenchmarkNet, benchmark_net, replace_parameters, take_head_off
from .support import check_new_classes


class IncrementalStrategy(SupervisedTemplate):  # type: ignore[misc]
    """A baseline as an Avalanche strategy; use one of its children.

    The classifier of the model is replaced by the method's head, which gets the classes of an
    experience when it begins. Logits are indexed by the benchmark's class ids, in any order. The
    loss of training is the method's, that of evaluation cross-entropy. After an experience
    exemplars of its classes are herded into `storage_policy`; they are added to the training data
    of the next ones, and AANetPlugin takes the old classes from them.

    Every experience brings new classes. The optimizer's settings and parameter groups are kept;
    the head is in the group of the classifier it replaces. Its state starts anew in every
    experience, unless `train` is called with `reset_optimizer_state=False`.

    Args:
        model: any network with a classifier at its end, or one that gives features. An
            IncrementalNet keeps its head, which must be the method's for the first experience.
            The model is changed in place.
        method: hyperparameters, as an instance of the class of the same name in
            `aanets_plugin.baselines`.
        mem_size_per_class: exemplars of each class, 20 if neither this nor `mem_size` is given.
        mem_size: exemplars in total, instead.
        predict_by: "head", or "nearest_mean" of the exemplars; with it, classes of an experience
            that is still being trained are not predicted yet.
        base_kwargs: what else SupervisedTemplate takes.
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
        train_mb_size: int = 1,
        train_epochs: int = 1,
        eval_mb_size: int | None = None,
        device: str | torch.device = "cpu",
        plugins: Sequence[SupervisedPlugin] | None = None,
        evaluator: EvaluationPlugin | Callable[[], EvaluationPlugin] | None = default_evaluator,
        eval_every: int = -1,
        **base_kwargs: Any,
    ) -> None:
        repair_checkpoints()
        name = self.method_type.__name__
        self.method = self.method_type() if method is None else method
        if not isinstance(self.method, self.method_type):
            raise ConfigurationError(
                f"method={method!r:.80}: expected an aanets_plugin.baselines.{name}, which holds "
                f"the hyperparameters, such as method=baselines.{name}()."
            )
        if predict_by not in ("head", "nearest_mean"):
            raise ConfigurationError(
                f"predict_by={predict_by!r}: expected 'head' or 'nearest_mean'."
            )
        self.predict_by = predict_by
        self.storage_policy = HerdedBuffer(mem_size_per_class, mem_size)
        self.teacher: BenchmarkNet | None = None
        net = benchmark_net(model)
        self._old_head: list[nn.Parameter] = []
        self._out: Output | None = None
        self._means: tuple[Tensor, Tensor] | None = None
        self._workers = 0
        super().__init__(
            model=net,
            optimizer=optimizer,
            criterion=nn.CrossEntropyLoss(),
            train_mb_size=train_mb_size,
            train_epochs=train_epochs,
            eval_mb_size=eval_mb_size,
            device=device,
            plugins=plugins,
            evaluator=evaluator,
            eval_every=eval_every,
            **base_kwargs,
        )

    @property
    def net(self) -> BenchmarkNet:
        net = unwrapped(self.model)
        assert isinstance(net, BenchmarkNet)
        return net

    # -- an experience begins --------------------------------------------------------------------

    def train_dataset_adaptation(self, **kwargs: Any) -> None:
        """The new data and the exemplars."""
        self._workers = kwargs.get("num_workers", 0)
        known = self.net.classes
        check_new_classes(self.experience, known)
        self.storage_policy.of_each(len({*known, *self.experience.classes_in_this_experience}))
        super().train_dataset_adaptation(**kwargs)
        if self.storage_policy.groups:
            exemplars = self.storage_policy.buffer.train()
            new = self.experience.dataset.train()
            self.adapted_dataset = concat_datasets([new, exemplars])

    def check_model_and_optimizer(self, reset_optimizer_state: bool = True, **kwargs: Any) -> None:
        super().check_model_and_optimizer(reset_optimizer_state=reset_optimizer_state, **kwargs)

    def model_adaptation(self, model: nn.Module | None = None) -> nn.Module:
        """In training, keep the network as the teacher and grow the head by the new classes."""
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
            self.teacher = copy.deepcopy(net).requires_grad_(False).eval()
            features, labels = self._features(data)
            net.add_classes(ids)
            columns = net.columns.cpu()[labels]
            head = self.method.grow(net.fc, len(ids), features, columns)
        else:
            shape = tuple(data.eval()[0][0].shape)
            self._old_head = take_head_off(net, shape)
            head = self._first_head(len(ids), shape)
            net.add_classes(ids)
        net.fc = head.to(self.device)
        new = list(net.fc.parameters())
        replace_parameters(self.optimizer, self._old_head, new)
        self.optimized_param_id = dict(self.model.named_parameters())
        self._old_head = new

    def _first_head(self, classes: int, input_shape: tuple[int, ...]) -> nn.Module:
        net = self.net
        head = self.method.head(feature_count(net.backbone, input_shape), classes)
        if isinstance(net.fc, nn.Identity):
            return head
        given, expected = repr(net.fc), repr(head)
        if given != expected:
            raise ConfigurationError(
                f"the IncrementalNet has the head {given}; the first experience needs {expected}. "
                f"Give the backbone alone to have it made."
            )
        return net.fc

    # -- a batch ---------------------------------------------------------------------------------

    def forward(self) -> Tensor:
        """Logits, or for the nearest mean one for it and zeros, by class id."""
        if self.is_training:
            maps = self.teacher is not None
            self._out = self.method.observe(self.net, self.mb_x, maps=maps)
            return self.net.by_id(self._out.logits)
        if self._means is None:
            return self.model(self.mb_x)  # type: ignore[no-any-return]
        nearest = nearest_mean(self.net.features(self.mb_x), *self._means)
        return F.one_hot(nearest, len(self.net.columns)).float()

    def criterion(self) -> Tensor:
        """The method's loss in training, cross-entropy in evaluation."""
        if not self.is_training:
            return super().criterion()  # type: ignore[no-any-return]
        assert self._out is not None
        taught = None
        if self.teacher is not None:
            with torch.no_grad():
                taught = self.method.observe(self.teacher, self.mb_x, maps=True)
        return self.method.loss(self.net.fc, self._out, self.net.columns[self.mb_y], taught)

    def _before_eval(self, **kwargs: Any) -> None:
        if self.predict_by == "nearest_mean" and self.storage_policy.groups:
            features, labels = self._features(self.storage_policy.buffer)
            classes, means = class_means(features, labels)
            self._means = classes.to(self.device), means.to(self.device)
        super()._before_eval(**kwargs)

    def _after_eval(self, **kwargs: Any) -> None:
        self._means = None
        super()._after_eval(**kwargs)

    # -- an experience ends ----------------------------------------------------------------------

    def _after_training_exp(self, **kwargs: Any) -> None:
        """Remember and fine-tune before any plugin looks at the network, or evaluates it."""
        later = self.teacher is not None
        self._out = self.teacher = None
        data = self.experience.dataset
        self.storage_policy.add(data, *self._features(data))
        if self.method.learns_exemplars:
            new = self.experience.classes_in_this_experience
            validation = self._loader(data.eval(), shuffle=True)
            groups = self.storage_policy.groups
            learn_exemplars(self.method, self.net, groups, new, validation, self.exemplar_transform)
        if later and self.method.fine_tuning is not None:
            loader = self._loader(self.storage_policy.buffer.train(), shuffle=True)
            fine_tune(self.method, self.net, loader, self.optimizer.param_groups[0])
        super()._after_training_exp(**kwargs)

    # -- data ------------------------------------------------------------------------------------

    @torch.no_grad()
    def _features(self, data: Any) -> tuple[Tensor, Tensor]:
        """Features and class ids of all samples, in order, with the transforms of evaluation."""
        features, labels = [], []
        with evaluating(self.net):
            for x, y, *_ in self._loader(data.eval()):
                features.append(self.net.features(x.to(self.device)).cpu())
                labels.append(y)
        return torch.cat(features), torch.cat(labels)

    def _loader(self, data: Any, shuffle: bool = False) -> DataLoader[Any]:
        size = self.train_mb_size if shuffle else self.eval_mb_size
        return DataLoader(data, batch_size=size, shuffle=shuffle, num_workers=self._workers)
