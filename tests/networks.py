"""Small networks with the joints of the codebases people plug into, written for these tests."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from aanets_plugin.baselines import CifarResNet


def resnet18(**options):
    """torchvision's ResNet-18; skips the test where torchvision is not installed."""
    return pytest.importorskip("torchvision").models.resnet18(**options)


class Block(nn.Module):
    """A basic block; with `relu=False` the sum is given out as it is."""

    def __init__(self, inputs, filters, stride=1, relu=True):
        super().__init__()
        self.conv_a = nn.Conv2d(inputs, filters, 3, stride, 1, bias=False)
        self.bn_a = nn.BatchNorm2d(filters)
        self.conv_b = nn.Conv2d(filters, filters, 3, 1, 1, bias=False)
        self.bn_b = nn.BatchNorm2d(filters)
        self.downsample = None
        if stride != 1 or inputs != filters:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, filters, 1, stride, bias=False), nn.BatchNorm2d(filters)
            )
        self.relu = relu

    def forward(self, x):
        shortcut = x if self.downsample is None else self.downsample(x)
        out = F.relu(self.bn_a(self.conv_a(x)), inplace=True)
        out = self.bn_b(self.conv_b(out)) + shortcut
        return F.relu(out, inplace=True) if self.relu else out


class DictNet(nn.Module):
    """`stage_1..3`, a dict as output, and an `fc` of the backbone that nobody uses."""

    def __init__(self):
        super().__init__()
        self.conv_1_3x3 = nn.Conv2d(3, 4, 3, 1, 1, bias=False)
        self.bn_1 = nn.BatchNorm2d(4)
        self.stage_1 = nn.Sequential(Block(4, 4), Block(4, 4))
        self.stage_2 = nn.Sequential(Block(4, 8, 2), Block(8, 8))
        self.stage_3 = nn.Sequential(Block(8, 8, 2), Block(8, 8))
        self.avgpool = nn.AdaptiveAvgPool2d(1)

    def forward(self, x):
        x = F.relu(self.bn_1(self.conv_1_3x3(x)), inplace=True)
        maps = []
        for stage in (self.stage_1, self.stage_2, self.stage_3):
            x = stage(x)
            maps.append(x)
        return {"fmaps": maps, "features": self.avgpool(x).flatten(1)}


class HeadOverDictNet(nn.Module):
    """A learner's network: backbone under a name of its own, head beside it."""

    def __init__(self):
        super().__init__()
        self.convnet = DictNet()
        self.fc = nn.Linear(8, 5)

    def forward(self, x):
        out = self.convnet(x)
        return {**out, "logits": self.fc(out["features"])}


class ListStage(nn.Module):
    """A stage that gives `(list of maps, x)`."""

    def __init__(self, *blocks):
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x):
        maps = []
        for block in self.blocks:
            x = block(x)
            maps.append(x)
            x = F.relu(x)
        return maps, x


class AttentionNet(nn.Module):
    """Stages that give `(list, x)`, the last one a bare block, all maps in the output."""

    def __init__(self):
        super().__init__()
        self.conv_1_3x3 = nn.Conv2d(3, 4, 3, 1, 1, bias=False)
        self.bn_1 = nn.BatchNorm2d(4)
        self.stage_1 = ListStage(Block(4, 4, relu=False), Block(4, 4, relu=False))
        self.stage_2 = ListStage(Block(4, 8, 2, relu=False), Block(8, 8, relu=False))
        self.stage_3 = ListStage(Block(8, 8, 2, relu=False))
        self.stage_4 = Block(8, 8, relu=False)

    def forward(self, x):
        x = F.relu(self.bn_1(self.conv_1_3x3(x)))
        maps = []
        for stage in (self.stage_1, self.stage_2, self.stage_3):
            inner, x = stage(x)
            maps.append(inner[-1])
        x = self.stage_4(x)
        return {"features": x.mean((2, 3)), "attention": [*maps, x]}


class ReturntNet(nn.Module):
    """`layer4 = nn.Identity()`, functional ReLU, and a forward that is told what to return."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(4)
        self.layer1 = nn.Sequential(Block(4, 4))
        self.layer2 = nn.Sequential(Block(4, 8, 2))
        self.layer3 = nn.Sequential(Block(8, 8, 2), Block(8, 8))
        self.layer4 = nn.Identity()
        self.classifier = nn.Linear(8, 5)

    def forward(self, x, returnt="out"):
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        features = x.mean((2, 3))
        if returnt == "features":
            return features
        out = self.classifier(features)
        return (out, features) if returnt == "both" else out


class HeadsNet(nn.Module):
    """A wrapper with one head per task, that gives a list; the backbone's `fc` is emptied."""

    def __init__(self):
        super().__init__()
        self.model = ReturntNet()
        self.model.classifier = nn.Sequential()
        self.heads = nn.ModuleList([nn.Linear(8, 2), nn.Linear(8, 3)])

    def forward(self, x):
        features = self.model(x)
        return [head(features) for head in self.heads]


class InPlaceNet(nn.Module):
    """Each stage starts by writing into its input."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 3, 1, 1)
        self.layer1 = nn.Sequential(nn.ReLU(inplace=True), Block(4, 4, relu=False))
        self.layer2 = nn.Sequential(nn.ReLU(inplace=True), Block(4, 8, 2, relu=False))
        self.fc = nn.Linear(8, 5)

    def forward(self, x):
        return self.fc(self.layer2(self.layer1(self.conv1(x))).mean((2, 3)))


def one_stage_net():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sequential(Block(4, 4), Block(4, 4)), nn.Flatten())


def bare_blocks_net():
    return nn.Sequential(nn.Conv2d(3, 4, 3), Block(4, 4), Block(4, 8, 2), nn.Flatten())


NETWORKS = {
    "cifar": lambda: CifarResNet(1, 5),
    "dict": HeadOverDictNet,
    "attention": AttentionNet,
    "returnt": ReturntNet,
    "heads": HeadsNet,
    "in-place": InPlaceNet,
    "one-stage": one_stage_net,
    "bare-blocks": bare_blocks_net,
}


def tensors(output):
    """Every tensor in an output, in order."""
    if isinstance(output, torch.Tensor):
        return [output]
    if isinstance(output, dict):
        output = output.values()
    return [tensor for item in output for tensor in tensors(item)]


def relative_error(actual, expected):
    pairs = list(zip(tensors(actual), tensors(expected), strict=True))
    return max(((a - e).norm() / e.norm().clamp_min(1e-12)).item() for a, e in pairs)


def shake(model):
    """Give every norm layer non-trivial weights and statistics, as a trained network has."""
    with torch.no_grad():
        for module in model.modules():
            if getattr(module, "running_var", None) is not None:
                module.running_mean.normal_(0, 0.1)
                module.running_var.uniform_(0.5, 1.5)
            weight = getattr(module, "weight", None)
            if isinstance(weight, nn.Parameter) and weight.dim() == 1:
                weight.uniform_(0.5, 1.5)
    return model
