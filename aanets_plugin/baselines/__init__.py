"""What the paper's baselines are made of, free of any framework."""

from aanets_plugin.baselines.heads import CosineLinear
from aanets_plugin.baselines.resnet import CifarResNet, resnet20, resnet32

__all__ = ["CifarResNet", "CosineLinear", "resnet20", "resnet32"]
