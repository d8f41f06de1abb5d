"""Small learners with PyCIL's joints: names, arguments, order of calls and form of batches."""

from __future__ import annotations

import copy

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

from tests.adapters.hosts_setup import EPOCHS, NEW, TASKS, images
from tests.networks import DictNet


class DummyDataset(Dataset):
    """Items are (index, x, y), with noise from two random states as augmentation."""

    def __init__(self, images, labels, trsf, use_path=False, aug=1):
        self.images, self.labels = images, labels
        self.trsf, self.use_path, self.aug = trsf, use_path, aug

    def __len__(self):
        return len(self.images)

    def __getitem__(self, idx):
        return idx, self.trsf(self.images[idx]), self.labels[idx]


class DataManager:
    def get_task_size(self, task):
        return NEW

    def get_dataset(self, indices, source, mode, appendent=None):
        parts = [images(task) for task in sorted({index // NEW for index in indices})]
        if appendent is not None and len(appendent) != 0:
            parts.append(appendent)
        data, targets = map(np.concatenate, zip(*parts, strict=True))
        return DummyDataset(data, targets, augmented if mode == "train" else torch.as_tensor)


def augmented(image):
    return torch.as_tensor(image) + (torch.randn(()) + float(np.random.normal())) / 10


class IncrementalNet(nn.Module):
    def __init__(self, convnet):
        super().__init__()
        self.convnet, self.fc = convnet, None

    def extract_vector(self, x):
        return self.convnet(x)["features"]

    def forward(self, x):
        out = self.convnet(x)
        return {"logits": self.fc(out["features"]), **out}

    def update_fc(self, nb_classes):
        fc = nn.Linear(8, nb_classes)
        if self.fc is not None:
            nb_output = self.fc.out_features
            fc.weight.data[:nb_output] = self.fc.weight.data
            fc.bias.data[:nb_output] = self.fc.bias.data
        del self.fc
        self.fc = fc

    def weight_align(self, increment):
        norms = self.fc.weight.data.norm(dim=1)
        self.fc.weight.data[-increment:] *= norms[:-increment].mean() / norms[-increment:].mean()

    def copy(self):
        return copy.deepcopy(self)

    def freeze(self):
        for param in self.parameters():
            param.requires_grad = False
        return self.eval()


class PyCILLearner:
    """WA with a fine-tuning after the main training, by another optimizer."""

    def __init__(self, memory=3, fine_tuning=1, devices=1):
        self._cur_task, self._known_classes, self._total_classes = -1, 0, 0
        self._network, self._old_network = IncrementalNet(self.convnet()), None
        self._data_memory, self._targets_memory = np.array([]), np.array([])
        self._memory_per_class, self.fine_tuning = memory, fine_tuning
        self._multiple_gpus = [torch.device("cpu")] * devices
        self._device = self._multiple_gpus[0]
        self.optimizers = []

    def convnet(self):
        return DictNet()

    def save_checkpoint(self, filename):
        self._network.cpu()
        save_dict = {"tasks": self._cur_task, "model_state_dict": self._network.state_dict()}
        torch.save(save_dict, f"{filename}_{self._cur_task}.pkl")

    def after_task(self):
        self._old_network = self._network.copy().freeze()
        self._known_classes = self._total_classes

    def incremental_train(self, data_manager):
        self._cur_task += 1
        self._total_classes = self._known_classes + data_manager.get_task_size(self._cur_task)
        self._network.update_fc(self._total_classes)
        self.make_loaders(data_manager)
        self.train_task(data_manager)

    def make_loaders(self, data_manager):
        new = np.arange(self._known_classes, self._total_classes)
        seen = np.arange(self._total_classes)
        train = data_manager.get_dataset(new, "train", "train", appendent=self._get_memory())
        self.train_loader = DataLoader(train, batch_size=5, shuffle=True)
        self.test_loader = DataLoader(data_manager.get_dataset(seen, "test", "test"), batch_size=5)

    def train_task(self, data_manager):
        if len(self._multiple_gpus) > 1:
            self._network = nn.DataParallel(self._network, self._multiple_gpus)
        self._train(self.train_loader, self.test_loader)
        self.build_rehearsal_memory(data_manager, self._memory_per_class)
        if len(self._multiple_gpus) > 1:
            self._network = self._network.module

    def _train(self, train_loader, test_loader):
        for epochs in (EPOCHS, self.fine_tuning):
            self._run(train_loader, epochs, self._network.parameters())
        if self._cur_task > 0:
            network = self._network
            parallel = isinstance(network, nn.DataParallel)
            (network.module if parallel else network).weight_align(NEW)

    def _run(self, train_loader, epochs, parameters):
        optimizer = torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=0.1)
        self.optimizers.append(optimizer)
        for _ in range(epochs):
            self._network.train()
            for _, inputs, targets in train_loader:
                loss = F.cross_entropy(self._network(inputs)["logits"], targets)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

    def _get_memory(self):
        if len(self._data_memory) == 0:
            return None
        return self._data_memory, self._targets_memory

    def build_rehearsal_memory(self, data_manager, per_class):
        for label in range(self._known_classes, self._total_classes) if per_class else ():
            x, y = images(label // NEW)
            exemplars = [part[y == label][:per_class] for part in (x, y)]
            old = self._get_memory()
            parts = [exemplars] if old is None else [old, exemplars]
            self._data_memory, self._targets_memory = map(np.concatenate, zip(*parts, strict=True))


class BiC(PyCILLearner):
    """Two stages. Each wraps the network itself, and the second one trains the head alone."""

    def train_task(self, data_manager):
        self._stage1_training(self.train_loader, self.test_loader)
        if self._cur_task >= 1:
            self._stage2_bias_correction(self.test_loader, self.test_loader)
        self.build_rehearsal_memory(data_manager, self._memory_per_class)
        if len(self._multiple_gpus) > 1:
            self._network = self._network.module

    def _stage1_training(self, train_loader, test_loader):
        parameters = list(self._network.parameters())
        if len(self._multiple_gpus) > 1:
            self._network = nn.DataParallel(self._network, self._multiple_gpus)
        self._run(train_loader, EPOCHS, parameters)

    def _stage2_bias_correction(self, val_loader, test_loader):
        if isinstance(self._network, nn.DataParallel):
            self._network = self._network.module
        parameters = list(self._network.fc.parameters())
        if len(self._multiple_gpus) > 1:
            self._network = nn.DataParallel(self._network, self._multiple_gpus)
        self._run(val_loader, EPOCHS, parameters)


class PODNet(PyCILLearner):
    """Its training has another first argument."""

    def train_task(self, data_manager):
        self._train(data_manager, self.train_loader, self.test_loader)
        self.build_rehearsal_memory(data_manager, self._memory_per_class)

    def _train(self, data_manager, train_loader, test_loader):
        super()._train(train_loader, test_loader)


class SimpleCIL(PyCILLearner):
    """The backbone is trained in the first task only, and later ones make no step."""

    def train_task(self, data_manager):
        self._train(self.train_loader, self.test_loader, self.train_loader)

    def _train(self, train_loader, test_loader, train_loader_for_protonet):
        if self._cur_task == 0:
            super()._train(train_loader, test_loader)


class ConvBlock(nn.Module):
    """A 3x3 convolution and, in the mode "parallel_adapters", a 1x1 convolution beside it."""

    def __init__(self, conv):
        super().__init__()
        channels = conv.in_channels, conv.out_channels
        self.conv = nn.Conv2d(*channels, 3, conv.stride, 1)
        self.adapter = nn.Conv2d(*channels, 1, conv.stride)
        self.mode = "parallel_adapters"

    def forward(self, x):
        y = self.conv(x)
        return y + self.adapter(x) if self.mode == "parallel_adapters" else y


class SSRE(PyCILLearner):
    """Trains only the adapters in later tasks; merges them into the kernels after every task."""

    def __init__(self, **options):
        super().__init__(memory=0, fine_tuning=0, **options)

    def convnet(self):
        net = DictNet()
        for stage in (net.stage_1, net.stage_2, net.stage_3):
            for block in stage:
                block.conv_a, block.conv_b = ConvBlock(block.conv_a), ConvBlock(block.conv_b)
        return net

    def train_task(self, data_manager):
        self._network_expansion()
        super().train_task(data_manager)
        self._network_compression()

    def _run(self, train_loader, epochs, parameters):
        super()._run(train_loader, epochs, filter(lambda p: p.requires_grad, parameters))

    def _network_expansion(self):
        if self._cur_task > 0:
            for name, parameter in self._network.convnet.named_parameters():
                parameter.requires_grad = "adapter" in name
        self.switch("parallel_adapters")

    def _network_compression(self):
        model_dict = self._network.state_dict()
        for key, value in model_dict.items():
            if "adapter" in key:
                into = key.replace("adapter", "conv")
                assert "weight" in key or "bias" in key
                merged = F.pad(value, [1, 1, 1, 1]) if "weight" in key else value
                model_dict[into] = model_dict[into] + merged
                model_dict[key] = torch.zeros_like(value)
        self._network.load_state_dict(model_dict)
        self.switch("normal")

    def switch(self, mode):
        for module in self._network.convnet.modules():
            if hasattr(module, "mode"):
                module.mode = mode


def run_pycil(learner, tasks=TASKS):
    for _ in range(tasks):
        learner.incremental_train(DataManager())
        learner.after_task()
    return learner
