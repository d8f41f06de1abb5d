"""A small approach with the joints and signatures of FACIL's, written for these tests.

Two classes per task.
"""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

from tests.adapters.hosts_setup import EPOCHS, NEW, TASKS, images
from tests.networks import Block


class FACILData(Dataset):
    def __init__(self, images=(), labels=()):
        self.images, self.labels = list(images), list(labels)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return torch.as_tensor(self.images[index]), self.labels[index]


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 4, 3, 1, 1, bias=False), nn.BatchNorm2d(4)
        self.layer1, self.layer2 = nn.Sequential(Block(4, 4)), nn.Sequential(Block(4, 8, 2))
        self.layer3 = nn.Sequential(Block(8, 8, 2))
        self.fc = nn.Sequential()

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        return self.fc(self.layer3(self.layer2(self.layer1(x))).mean((2, 3)))


class FACILNet(nn.Module):
    """A backbone, and a list of heads whose outputs come as a list."""

    def __init__(self):
        super().__init__()
        self.model = ResNet()
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
