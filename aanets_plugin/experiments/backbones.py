"""Backbones by name: ours, torchvision's and timm's."""

import difflib
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn
from torchvision import models
from torchvision.models.resnet import BasicBlock

from aanets_plugin.baselines.resnet import CifarResNet, resnet20, resnet32
from aanets_plugin.errors import ConfigurationError

Factory = Callable[[], nn.Module]


class OpenBlock(BasicBlock):  # type: ignore[misc]  # torchvision is not annotated
    """ResNet's basic block without its last ReLU."""

    def forward(self, x: Any) -> Any:
        """Return the sum of both paths, of either sign."""
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return out + (x if self.downsample is None else self.downsample(x))


def resnet18_open() -> nn.Module:
    """The paper's network for ImageNet: torchvision's ResNet-18 without the last ReLU.

    So the features for a cosine classifier can be negative.
    """
    model: Any = models.resnet18()
    last = OpenBlock(512, 512)
    for convolution in (last.conv1, last.conv2):
        nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
    model.layer4[-1] = last
    return model  # type: ignore[no-any-return]


# A run replaces the head, so the number of classes does not matter here.
OUR_BACKBONES: dict[str, Factory] = {
    "resnet8": partial(CifarResNet, 1, 100),
    "resnet20": resnet20,
    "resnet32": resnet32,
    "resnet18_open": resnet18_open,
}


def backbone_factory(name: str, *, pretrained: bool = False) -> Factory:
    """A function that creates the network `name`, with the published weights if `pretrained`.

    The name is one of `OUR_BACKBONES`, or that of a torchvision or timm model. They are searched in
    this order; `torchvision:NAME` and `timm:NAME` choose a library.

    Examples:
        >>> type(backbone_factory("resnet32")()).__name__
        'CifarResNet'
    """
    source, _, bare = name.rpartition(":")
    if source not in ("", "torchvision", "timm"):
        raise ConfigurationError(
            f"backbone={name!r}: there is no source {source!r}. Pass torchvision:{bare}, "
            f"timm:{bare} or {bare}."
        )
    if not source and bare in OUR_BACKBONES:
        if pretrained:
            raise ConfigurationError(
                f"backbone={name!r}: has no pretrained weights. Leave out pretrained, or use a "
                f"model of torchvision or timm."
            )
        return OUR_BACKBONES[bare]
    known = [] if source else list(OUR_BACKBONES)
    if source != "timm":
        of_torchvision = models.list_models(module=models)
        if bare in of_torchvision:
            return partial(_create, "torchvision", bare, pretrained)
        known += of_torchvision
    if source != "torchvision":
        names = _timm_names(required=bool(source))
        if bare in names:
            return partial(_create, "timm", bare, pretrained)
        known += names
    close = difflib.get_close_matches(bare, dict.fromkeys(known), n=5)
    where = source or "this package, torchvision and timm"
    raise ConfigurationError(
        f"backbone={name!r}: there is no such network in {where}. "
        + (f"Did you mean {', '.join(close)}?" if close else "Try resnet32 or resnet18.")
    )


def _create(library: str, name: str, pretrained: bool) -> Any:
    try:
        if library == "torchvision":
            return models.get_model(name, weights="DEFAULT" if pretrained else None)
        import timm

        return timm.create_model(name, pretrained=pretrained, num_classes=0)
    except Exception as error:  # a hub, a connection and a file raise different types
        raise ConfigurationError(
            f"backbone={name!r}: could not be created ({type(error).__name__}: {error}). If the "
            f"weights could not be downloaded, check the connection or leave out pretrained."
        ) from error


def _timm_names(*, required: bool) -> list[str]:
    """The names of architectures, then those of pretrained weights (`resnet18.a1_in1k`)."""
    try:
        import timm
    except ImportError as error:
        if required:
            raise ConfigurationError(
                f"timm is not installed ({error}). Run pip install timm, or use a model of "
                f"torchvision."
            ) from error
        return []
    return [*timm.list_models(), *timm.list_pretrained()]
