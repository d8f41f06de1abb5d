"""Small models with mammoth's joints: names, arguments, order of calls and form of items.

Two classes per task. The training loop, the hooks of a ContinualModel and the items are those of
mammoth; the methods are short versions of the ones whose names they have.
"""

from __future__ import annotations

import copy
from argparse import Namespace

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.utils.data import DataLoader, Dataset

from tests.adapters.hosts_setup import EPOCHS, NEW, TASKS, images


class BasicBlock(nn.Module):
    """A block that can keep its output before the last ReLU, as a tensor with a graph."""

    def __init__(self, in_planes, planes, stride=1):
        super().__init__()
        self.return_prerelu = False
        self.conv1 = nn.Conv2d(in_planes, planes, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.shortcut = nn.Sequential()
        if stride != 1 or in_planes != planes:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_planes, planes, 1, stride, bias=False), nn.BatchNorm2d(planes)
            )

    def forward(self, x):
        out = self.bn1(self.conv1(x))
        out += self.shortcut(x)
        if self.return_prerelu:
            self.prerelu = out.clone()
        return F.relu(out)


class ResNet(nn.Module):
    """A head for all classes from the start, `returnt`, and the flat vectors of parameters."""

    def __init__(self, num_classes=TASKS * NEW):
        super().__init__()
        self.return_prerelu, self.block = False, BasicBlock
        self.conv1, self.bn1 = nn.Conv2d(3, 4, 3, 1, 1, bias=False), nn.BatchNorm2d(4)
        self.layer1 = nn.Sequential(BasicBlock(4, 4), BasicBlock(4, 4))
        self.layer2, self.layer3 = (nn.Sequential(BasicBlock(*c, 2)) for c in ((4, 8), (8, 8)))
        self.layer4 = nn.Identity()
        self.classifier = nn.Linear(8, num_classes)

    def set_return_prerelu(self, enable=True):
        self.return_prerelu = enable
        for module in self.modules():
            if isinstance(module, self.block):
                module.return_prerelu = enable

    def forward(self, x, returnt="out"):
        out_0 = F.relu(self.bn1(self.conv1(x)))
        out_1 = self.layer1(out_0)
        out_2 = self.layer2(out_1)
        out_3 = self.layer3(out_2)
        feature = self.layer4(out_3).mean((2, 3))
        if returnt == "features":
            return feature
        out = self.classifier(feature)
        if returnt == "out":
            return out
        if returnt == "both":
            return out, feature
        assert returnt == "full"
        if self.return_prerelu:
            out_1, out_2, out_3 = (
                layer[-1].prerelu for layer in (self.layer1, self.layer2, self.layer3)
            )
        return out, [out_0, out_1, out_2, out_3]

    def get_params(self):
        return parameters_to_vector(self.parameters())

    def set_params(self, new_params):
        vector_to_parameters(new_params, self.parameters())

    def get_grads(self):
        return torch.cat([p.grad.view(-1) for p in self.parameters()])


class MammothDatasetWrapper(Dataset):
    """Items are (augmented and normalized x, y, x)."""

    def __init__(self, task):
        data, targets = images(task)
        self.data, self.targets = data, torch.as_tensor(targets)

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        x = torch.as_tensor(self.data[index])
        return normalize(x) + torch.randn(()) / 10, self.targets[index], x


def normalize(x):
    return (x - 1) / 2


class KorniaNormalize(nn.Module):
    """The output has a batch dimension, also for a single image."""

    def forward(self, x):
        return normalize(x if x.dim() == 4 else x[None])


class ContinualDataset:
    N_TASKS, N_CLASSES_PER_TASK = TASKS, NEW

    def __init__(self, unlabelled=0):
        self.train_loader, self.test_loaders, self.unlabelled = None, [], unlabelled

    def get_data_loaders(self):
        data = MammothDatasetWrapper(len(self.test_loaders))
        data.targets[: self.unlabelled] = -1
        self.train_loader = DataLoader(data, 5, shuffle=True)
        self.test_loaders.append(DataLoader(data, 5))
        return self.train_loader, self.test_loaders[-1]

    def get_offsets(self, task_idx):
        return task_idx * NEW, (task_idx + 1) * NEW


class Buffer:
    """A reservoir, which new classes come into while the task lasts."""

    def __init__(self, buffer_size, device="cpu"):
        self.buffer_size, self.device, self.num_seen_examples = buffer_size, device, 0

    def __len__(self):
        return min(self.num_seen_examples, self.buffer_size)

    def is_empty(self):
        return self.num_seen_examples == 0

    def add_data(self, examples, labels=None):
        if not hasattr(self, "examples"):
            self.examples = torch.zeros(self.buffer_size, *examples.shape[1:])
            self.labels = torch.zeros(self.buffer_size, dtype=torch.int64)
        for x, y in zip(examples, labels, strict=True):
            place = seen = self.num_seen_examples
            if seen >= self.buffer_size:
                place = np.random.randint(seen + 1)
            if place < self.buffer_size:
                self.examples[place], self.labels[place] = x, y
            self.num_seen_examples += 1

    def get_all_data(self, transform=None):
        examples = self.examples[: len(self)]
        return transform(examples), self.labels[: len(self)]


class ContinualModel(nn.Module):
    NAME = "sgd"

    def __init__(self, backbone, loss, args, transform, dataset=None):
        super().__init__()
        self.net, self.loss, self.args, self.dataset = backbone, loss, args, dataset
        self.normalization_transform = KorniaNormalize()
        self.device = torch.device("cpu")
        self._current_task, self._cpt = 0, NEW
        self.opt = self.get_optimizer()

    @property
    def current_task(self):
        return self._current_task

    @property
    def n_seen_classes(self):
        return self._n_seen_classes

    def get_parameters(self):
        return self.net.parameters()

    def get_optimizer(self, params=None, lr=None):
        params = params if params is not None else self.get_parameters()
        lr = lr if lr is not None else 0.05
        return torch.optim.SGD(list(params), lr=lr, weight_decay=0.1)

    def begin_task(self, dataset):
        pass

    def end_task(self, dataset):
        pass

    def begin_epoch(self, epoch, dataset):
        pass

    def end_epoch(self, epoch, dataset):
        pass

    def forward(self, x):
        return self.net(x)

    def meta_begin_task(self, dataset):
        self._n_past_classes, self._n_seen_classes = dataset.get_offsets(self._current_task)
        self.opt.zero_grad(set_to_none=True)
        self.opt = self.get_optimizer()
        self.begin_task(dataset)

    def meta_end_task(self, dataset):
        self.end_task(dataset)
        self._current_task += 1

    def meta_begin_epoch(self, epoch, dataset):
        self.begin_epoch(epoch, dataset)

    def meta_end_epoch(self, epoch, dataset):
        self.end_epoch(epoch, dataset)

    def meta_observe(self, *args, **kwargs):
        labelled = args[1] != -1
        if not labelled.all():
            args = [part[labelled] for part in args]
        return self.observe(*args, **kwargs) if labelled.any() else 0

    def observe(self, inputs, labels, not_aug_inputs, epoch=None):
        self.opt.zero_grad()
        loss = self.loss(self.net(inputs), labels) + self.penalty()
        loss.backward()
        self.opt.step()
        return loss.item()

    def penalty(self):
        return 0.0


class Er(ContinualModel):
    NAME = "er"

    def __init__(self, backbone, loss, args, transform, dataset=None):
        super().__init__(backbone, loss, args, transform, dataset=dataset)
        self.buffer = Buffer(12)

    def observe(self, inputs, labels, not_aug_inputs, epoch=None):
        loss = super().observe(inputs, labels, not_aug_inputs, epoch)
        self.buffer.add_data(examples=not_aug_inputs, labels=labels)
        return loss


class EwcOn(ContinualModel):
    """Measures the importance of each weight at the end of a task, with the optimizer it has."""

    NAME = "ewc_on"
    fish = checkpoint = None

    def penalty(self):
        if self.checkpoint is None:
            return 0.0
        return (self.fish * (self.net.get_params() - self.checkpoint) ** 2).sum()

    def end_task(self, dataset):
        fish = torch.zeros_like(self.net.get_params())
        inputs, labels, _ = next(iter(dataset.train_loader))
        for image, label in zip(inputs, labels, strict=True):
            self.opt.zero_grad()
            self.loss(self.net(image[None]), label[None]).backward()
            fish += self.net.get_grads() ** 2
        self.fish, self.checkpoint = fish, self.net.get_params().data.clone()


class SI(ContinualModel):
    """Adds up the importance of each weight while the task lasts."""

    NAME = "si"

    def __init__(self, backbone, loss, args, transform, dataset=None):
        super().__init__(backbone, loss, args, transform, dataset=dataset)
        self.checkpoint = self.net.get_params().data.clone()
        self.big_omega, self.small_omega = None, 0

    def penalty(self):
        if self.big_omega is None:
            return 0.0
        return (self.big_omega * (self.net.get_params() - self.checkpoint) ** 2).sum()

    def end_task(self, dataset):
        now = self.net.get_params().data
        if self.big_omega is None:
            self.big_omega = torch.zeros_like(now)
        self.big_omega += self.small_omega / ((now - self.checkpoint) ** 2 + 1)
        self.checkpoint, self.small_omega = now.clone(), 0

    def observe(self, inputs, labels, not_aug_inputs, epoch=None):
        loss = super().observe(inputs, labels, not_aug_inputs, epoch)
        self.small_omega = self.small_omega + 0.05 * self.net.get_grads().data ** 2
        return loss


class DerppLider(Er):
    """Reads what the blocks keep of their outputs."""

    NAME = "derpp_lider"

    def begin_task(self, dataset):
        if self.current_task == 0:
            self.net.set_return_prerelu(True)

    def penalty(self):
        if self.buffer.is_empty():
            return 0.0
        inputs, _ = self.buffer.get_all_data(self.normalization_transform)
        _, features = self.net(inputs, returnt="full")
        return sum(feature.square().mean() for feature in features) / 100


class HAL(Er):
    """Copies the weights into a second network that it has from the start."""

    NAME = "hal"

    def __init__(self, backbone, loss, args, transform, dataset=None):
        super().__init__(backbone, loss, args, transform, dataset=dataset)
        self.spare_model = copy.deepcopy(backbone)
        self.spare_opt = torch.optim.SGD(self.spare_model.parameters(), lr=0.05)

    def end_task(self, dataset):
        self.spare_model.set_params(self.net.get_params().detach().clone())
        x = normalize(torch.as_tensor(dataset.train_loader.dataset.data))
        self.spare_gap = float((self.spare_model(x) - self.net(x)).detach().abs().max())


class Perturber:
    def __init__(self, continual_model):
        self.net, self.proxy = continual_model.net, copy.deepcopy(continual_model.net)

    def __call__(self, inputs):
        self.proxy.load_state_dict(self.net.state_dict())


class ErSTAR(Er):
    """Copies the state into a second network in each step."""

    NAME = "er_star"

    def __init__(self, backbone, loss, args, transform, dataset=None):
        super().__init__(backbone, loss, args, transform, dataset=dataset)
        self.pert = Perturber(self)

    def observe(self, inputs, labels, not_aug_inputs, epoch=None):
        self.pert(inputs)
        return super().observe(inputs, labels, not_aug_inputs, epoch)


class ErAceAerAbs(Er):
    """Keeps the state of an epoch in `end_epoch`, and goes on training in `end_task`."""

    NAME = "er_ace_aer_abs"

    def end_epoch(self, epoch, dataset):
        self.past_model_ckpt = copy.deepcopy(self.net.state_dict())

    def end_task(self, dataset):
        opt = self.get_optimizer(self.net.parameters(), lr=0.02)
        inputs, labels = self.buffer.get_all_data(self.normalization_transform)
        opt.zero_grad()
        self.loss(self.net(inputs), labels).backward()
        opt.step()


MODELS = {
    model.NAME: model
    for model in (ContinualModel, Er, EwcOn, SI, DerppLider, HAL, ErSTAR, ErAceAerAbs)
}


def get_model(name="er", dataset=None):
    """As mammoth's `main` calls it."""
    return MODELS[name](ResNet(), F.cross_entropy, Namespace(model=name), None, dataset=dataset)


def train(model, dataset=None, *, tasks=TASKS, start_from=0, loadcheck=None, epochs=EPOCHS):
    """mammoth's loop over tasks; `epochs=0` is its --inference_only. `tasks` is --stop_after."""
    dataset = dataset or ContinualDataset()
    for _ in range(start_from):
        dataset.get_data_loaders()
        model.meta_begin_task(dataset)
        model.meta_end_task(dataset)
    if loadcheck is not None:
        state, buffer = copy.deepcopy(loadcheck)
        model.load_state_dict(state)
        if buffer is not None:
            model.buffer = buffer
    for _ in range(start_from, tasks):
        model.net.train()
        train_loader, _ = dataset.get_data_loaders()
        model.meta_begin_task(dataset)
        if epochs:
            model.opt = model.get_optimizer()  # for the scheduler of the task
        for epoch in range(epochs):
            model.meta_begin_epoch(epoch, dataset)
            for inputs, labels, not_aug_inputs in train_loader:
                model.meta_observe(inputs, labels, not_aug_inputs, epoch=epoch)
            model.meta_end_epoch(epoch, dataset)
        model.meta_end_task(dataset)
    return model


def checkpoint(model):
    """What mammoth's --savecheck keeps."""
    return copy.deepcopy((model.state_dict(), getattr(model, "buffer", None)))
