"""Small learners with the joints of the hosts, written for these tests. Two classes per task."""

from __future__ import annotations

import copy
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


# -- FACIL ---------------------------------------------------------------------------------------


class FACILData(Dataset):
    def __init__(self, images=(), labels=()):
        self.images, self.labels = list(images), list(labels)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return torch.as_tensor(self.images[index]), self.labels[index]


class FACILNet(nn.Module):
    """A backbone, and a list of heads whose outputs come as a list."""

    def __init__(self):
        super().__init__()
        self.model = MammothNet()
        self.model.classifier = nn.Identity()
        self.heads = nn.ModuleList()

    def forward(self, x, return_features=False):
        features = self.model(x)
        outputs = [head(features) for head in self.heads]
        return (outputs, features) if return_features else outputs

    def get_copy(self):
        return copy.deepcopy(self.state_dict())

    def set_state_dict(self, state_dict):
        self.load_state_dict(copy.deepcopy(state_dict))

    def freeze_all(self):
        for param in self.parameters():
            param.requires_grad = False


class FACILApproach:
    """Warm-up of the head, main epochs that go back to the best one, a fine-tuning.

    As `kind` says, dicts over the parameters of the backbone: "ewc" has importances computed after
    the training, "si" has some that are added up in it.
    """

    def __init__(self, exemplars=True, back_to=0, kind=None):
        self.model, self.device, self.kind = FACILNet(), "cpu", kind
        self.exemplars_dataset, self.collects = FACILData(), exemplars
        self.back_to, self.optimizer, self.model_old = back_to, None, None
        if kind:
            self.older_params = self._parameters()
            self.importance = {n: torch.zeros_like(p) for n, p in self.older_params.items()}
            self.w = {n: torch.zeros_like(p) for n, p in self.older_params.items()}

    def _parameters(self):
        named = self.model.model.named_parameters()
        return {n: p.clone().detach() for n, p in named if p.requires_grad}

    def _get_optimizer(self):
        return torch.optim.SGD(self.model.parameters(), 0.05, weight_decay=0.1)

    def train(self, t, trn_loader, val_loader):
        self.pre_train_process(t, trn_loader)
        self.train_loop(t, trn_loader, val_loader)
        self.post_train_process(t, trn_loader)

    def pre_train_process(self, t, trn_loader):
        if t == 0:
            self.model.model.layer3[-1] = Block(8, 8, 2, relu=False)
        self.optimizer = torch.optim.SGD(self.model.heads[-1].parameters(), 0.01)
        for x, y in trn_loader:
            F.cross_entropy(torch.cat(self.model(x), dim=1), y).backward()
            self.optimizer.step()

    def train_loop(self, t, trn_loader, val_loader):
        if len(self.exemplars_dataset) > 0 and t > 0:
            trn_loader = DataLoader(trn_loader.dataset + self.exemplars_dataset, 5, shuffle=True)
        self.optimizer = self._get_optimizer()
        states = []
        for _ in range(EPOCHS + 1):
            self.train_epoch(t, trn_loader)
            states.append(self.model.get_copy())
        self.model.set_state_dict(states[self.back_to])
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.01)
        self.train_epoch(t, trn_loader)  # fine-tuning
        if self.collects:
            x, y = images(t)
            self.exemplars_dataset.images += list(x[::3])
            self.exemplars_dataset.labels += list(y[::3])

    def post_train_process(self, t, trn_loader):
        self.model_old = copy.deepcopy(self.model)
        self.model_old.eval()
        self.model_old.freeze_all()
        now = self._parameters()
        if self.kind == "ewc":
            x, y = next(iter(trn_loader))
            self.optimizer.zero_grad()
            F.cross_entropy(torch.cat(self.model(x), dim=1), y).backward()
            squares = {n: p.grad**2 for n, p in self.model.model.named_parameters()}
            self.importance = {n: (old + squares[n]) / 2 for n, old in self.importance.items()}
        if self.kind == "si":
            for n, importance in self.importance.items():
                importance += self.w[n] / ((now[n] - self.older_params[n]) ** 2 + 1)
                self.w[n].zero_()
        self.older_params = now

    def train_epoch(self, t, trn_loader):
        self.model.train()
        for x, y in trn_loader:
            before = self._parameters()
            loss = self.criterion(t, self.model(x), y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            if self.kind == "si":
                for n, p in self.model.model.named_parameters():
                    self.w[n] -= p.grad * (p.detach() - before[n])

    def criterion(self, t, outputs, targets):
        loss = F.cross_entropy(torch.cat(outputs, dim=1), targets)
        if self.kind and t > 0:
            for n, p in self.model.model.named_parameters():
                loss = loss + (self.importance[n] * (p - self.older_params[n]) ** 2).sum()
        return loss


def run_facil(approach, tasks=TASKS):
    for task in range(tasks):
        approach.model.heads.append(nn.Linear(8, NEW))
        loader = DataLoader(FACILData(*images(task)), 5, shuffle=True)
        approach.train(task, loader, loader)
    return approach
