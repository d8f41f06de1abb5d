"""The CIFAR ResNet of LUCIR, Mnemonics and AANets: the paper's backbone for 32x32 images."""

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from aanets_plugin.baselines.heads import CosineLinear


class CifarBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut.

    The last block of the network has no final ReLU, so that the cosine classifier gets features of
    both signs.
    """

    def __init__(self, inputs: int, filters: int, *, stride: int = 1, last: bool = False) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, filters, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(filters)
        self.conv2 = nn.Conv2d(filters, filters, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(filters)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != filters:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, filters, 1, stride, bias=False), nn.BatchNorm2d(filters)
            )
        self.last = last

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the block, which has a final ReLU unless it is the last."""
        out = F.relu(self.bn1(self.conv1(x)), inplace=True)
        out = self.bn2(self.conv2(out))
        out = out + self.shortcut(x)
        return out if self.last else F.relu(out, inplace=True)


class CifarResNet(nn.Module):
    """Three stages of `depth` blocks, 6 · depth + 2 layers.

    The first stage has `filters` filters, each later one twice as many as the one before.
    """

    def __init__(
        self, depth: int, num_classes: int, in_channels: int = 3, filters: int = 16
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, filters, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(filters)
        self.relu = nn.ReLU(inplace=True)
        self.layer1 = _stage(filters, filters, depth, stride=1)
        self.layer2 = _stage(filters, 2 * filters, depth, stride=2)
        self.layer3 = _stage(2 * filters, 4 * filters, depth, stride=2, last=True)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = CosineLinear(4 * filters, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def constructor_arguments(self) -> dict[str, Any]:
        """Return the arguments that make such a network."""
        classes = getattr(self.fc, "out_features", 1)
        inputs = self.conv1.in_channels
        return {"depth": len(self.layer1), "num_classes": classes, "in_channels": inputs}

    def features(self, x: Tensor) -> Tensor:
        """Return the input of the classifier, [batch, 4 · filters]."""
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.avgpool(x).flatten(1)  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits, [batch, classes]."""
        return self.fc(self.features(x))  # type: ignore[no-any-return]


def _stage(
    inputs: int, filters: int, depth: int, *, stride: int, last: bool = False
) -> nn.Sequential:
    blocks = [CifarBlock(inputs, filters, stride=stride, last=last and depth == 1)]
    blocks += [CifarBlock(filters, filters, last=last and i == depth - 1) for i in range(1, depth)]
    return nn.Sequential(*blocks)


def resnet20(num_classes: int = 100, in_channels: int = 3) -> CifarResNet:
    """20 layers: three blocks per stage."""
    return CifarResNet(3, num_classes, in_channels)


def resnet32(num_classes: int = 100, in_channels: int = 3) -> CifarResNet:
    """32 layers, five blocks per stage: the paper's network for CIFAR-100."""
    return CifarResNet(5, num_classes, in_channels)
