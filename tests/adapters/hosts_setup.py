"""Small learners with the joints of the hosts, written for these tests. Two classes per task."""

from __future__ import annotations

from argparse import Namespace

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

from tests.networks import Block

TASKS, NEW, PER_CLASS, EPOCHS = 3, 2, 8, 2


def images(task):
    """Arrays of the task's two classes, an image per row."""
    generator = np.random.default_rng(task)
    labels = np.repeat(np.arange(task * NEW, (task + 1) * NEW), PER_CLASS)
    x = generator.normal(size=(len(labels), 3, 8, 8)) + labels[:, None, None, None] / 2
    return x.astype(np.float32), labels


class Watched:
    """Counts, on a learner with AANets, the classes in each update of α."""

    def __init__(self, learner):
        self.learner, self.counts = learner, []
        bilevel = learner.bilevel
        loss_fn, after_epoch = bilevel.loss_fn, bilevel.after_epoch

        def counting(model, batch):
            for label in batch[-1].tolist():
                self.counts[-1][label] = self.counts[-1].get(label, 0) + 1
            return loss_fn(model, batch)

        def counted(loader=None):
            if not bilevel.in_base_phase:
                self.counts.append({})
            return after_epoch(loader)

        bilevel.loss_fn, bilevel.after_epoch = counting, counted

    def assert_balanced(self, updates):
        """`updates` after each task; all classes so far in each, and equally many of them."""
        tasks = [task for task, count in enumerate(updates, 1) for _ in range(count)]
        assert len(self.counts) == len(tasks)
        for task, counts in zip(tasks, self.counts, strict=True):
            assert set(counts) == set(range((task + 1) * NEW))
            assert len(set(counts.values())) == 1


# -- mammoth -------------------------------------------------------------------------------------


class MammothNet(nn.Module):
    """A head for all classes from the start, `returnt`, and the flat vectors of parameters."""

    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 4, 3, 1, 1, bias=False), nn.BatchNorm2d(4)
        self.layer1, self.layer2 = nn.Sequential(Block(4, 4)), nn.Sequential(Block(4, 8, 2))
        self.layer3 = nn.Sequential(Block(8, 8, 2))
        self.layer4 = nn.Identity()
        self.classifier = nn.Linear(8, TASKS * NEW)

    def forward(self, x, returnt="out"):
        x = F.relu(self.bn1(self.conv1(x)))
        features = self.layer4(self.layer3(self.layer2(self.layer1(x)))).mean((2, 3))
        return features if returnt == "features" else self.classifier(features)

    def get_params(self):
        return torch.cat([p.view(-1) for p in self.parameters()])

    def get_grads(self):
        return torch.cat([p.grad.view(-1) for p in self.parameters()])


class MammothData(Dataset):
    """Items are (augmented x, y, x)."""

    def __init__(self, task):
        self.data, self.targets = images(task)

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        x = torch.as_tensor(self.data[index])
        return x + torch.randn(()) / 10, self.targets[index], x


class Reservoir:
    """A buffer that new classes come into while the task lasts."""

    def __init__(self, buffer_size):
        self.buffer_size, self.num_seen_examples = buffer_size, 0

    def __len__(self):
        return min(self.num_seen_examples, self.buffer_size)

    def add_data(self, examples, labels=None):
        if not hasattr(self, "examples"):
            self.examples = torch.zeros(self.buffer_size, *examples.shape[1:])
            self.labels = torch.zeros(self.buffer_size, dtype=torch.long)
        for x, y in zip(examples, labels, strict=True):
            place = seen = self.num_seen_examples
            if seen >= self.buffer_size:
                place = np.random.randint(seen + 1)
            if place < self.buffer_size:
                self.examples[place], self.labels[place] = x, y
            self.num_seen_examples += 1


class MammothModel(nn.Module):
    """The hooks of a ContinualModel in their order; EWC's and SI's vectors as `kind` says."""

    NAME = "stand-in"

    def __init__(self, kind="er"):
        super().__init__()
        self.net, self.kind, self.device = MammothNet(), kind, torch.device("cpu")
        self.normalization_transform = nn.Identity()
        self._current_task, self._n_seen_classes = 0, 0
        self.opt = self.get_optimizer()
        if kind == "er":
            self.buffer = Reservoir(12)
        self.checkpoint = self.net.get_params().data.clone() if kind == "si" else None
        self.small_omega, self.big_omega, self.fish = 0, None, None

    @property
    def current_task(self):
        return self._current_task

    @property
    def n_seen_classes(self):
        return self._n_seen_classes

    def get_optimizer(self, params=None, lr=None):
        return torch.optim.SGD(params or self.net.parameters(), lr or 0.05, weight_decay=0.1)

    def meta_begin_task(self, dataset):
        self._n_seen_classes = (self.current_task + 1) * NEW
        self.opt = self.get_optimizer()

    def meta_end_epoch(self, epoch, dataset):
        pass

    def meta_end_task(self, dataset):
        self.end_task(dataset)
        self._current_task += 1

    def end_task(self, dataset):
        now = self.net.get_params().data
        if self.kind == "si":
            omega = torch.zeros_like(now) if self.big_omega is None else self.big_omega
            self.big_omega = omega + self.small_omega / ((now - self.checkpoint) ** 2 + 1)
            self.checkpoint, self.small_omega = now.clone(), 0
        if self.kind == "ewc":
            x, y, _ = next(iter(dataset.train_loader))
            fish = 0
            for image, label in zip(x, y, strict=True):
                self.opt.zero_grad()
                F.cross_entropy(self.net(image[None]), label[None]).backward()
                fish = fish + self.net.get_grads() ** 2
            self.fish, self.checkpoint = fish, now.clone()

    def observe(self, inputs, labels, not_aug_inputs, epoch=None):
        before = self.net.get_params().data
        self.opt.zero_grad()
        loss = F.cross_entropy(self.net(inputs), labels)
        for importance in (self.big_omega, self.fish):
            if importance is not None:
                loss = loss + (importance * (self.net.get_params() - self.checkpoint) ** 2).sum()
        loss.backward()
        gradients = self.net.get_grads()
        self.opt.step()
        if self.kind == "si":
            self.small_omega = self.small_omega + gradients * (before - self.net.get_params().data)
        if self.kind == "er":
            self.buffer.add_data(not_aug_inputs, labels)


def run_mammoth_task(model, task, epochs=EPOCHS):
    dataset = Namespace(train_loader=DataLoader(MammothData(task), 5, shuffle=True))
    model.meta_begin_task(dataset)
    for epoch in range(epochs):
        model.net.train()
        for batch in dataset.train_loader:
            model.observe(*batch, epoch=epoch)
        model.meta_end_epoch(epoch, dataset)
    model.meta_end_task(dataset)


def run_mammoth(model, tasks=TASKS):
    for task in range(tasks):
        run_mammoth_task(model, task)
    return model
