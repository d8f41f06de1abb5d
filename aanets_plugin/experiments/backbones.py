"""Backbones by name: ours, torchvision's and timm's."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn
from torchvision import models
from torchvision.models.resnet import BasicBlock

from aanets_plugin.baselines.resnet import CifarResNet, resnet20, resnet32
from aanets_plugin.errors import ConfigurationError

Make = Callable[[], nn.Module]


class OpenBlock(BasicBlock):  # type: ignore[misc]  # torchvision is not annotated
    """ResNet's basic block without its last ReLU."""

    def forward(self, x: Any) -> Any:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return out + (x if self.downsample is None else self.downsample(x))


def resnet18_open() -> nn.Module:
    """The paper's network for ImageNet: torchvision's ResNet-18, whose last block ends without a
    ReLU, so that a cosine classifier sees features of both signs."""
    model: Any = models.resnet18()
    last = OpenBlock(512, 512)
    for convolution in (last.conv1, last.conv2):
        nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
    model.layer4[-1] = last
    return model  # type: ignore[no-any-return]


# The head is replaced in any case: the number of classes does not matter.
OURS: dict[str, Make] = {
    "resnet8": partial(CifarResNet, 1, 100),
    "resnet20": resnet20,
    "resnet32": resnet32,
    "resnet18_open": resnet18_open,
}


def backbone(name: str, *, pretrained: bool = False) -> Make:
    """A function that makes the network `name`, with `pretrained` from its published weights.

    A bare name is looked up among ours, then in torchvision, then in timm; `torchvision:NAME` and
    `timm:NAME` say which is meant.

    >>> backbone("resnet32")().layer3[-1].last
    True
    """
    source, _, bare = name.rpartition(":")
    if source not in ("", "torchvision", "timm"):
        raise ConfigurationError(
            f"backbone={name!r}: there is no source {source!r}; expected torchvision:{bare}, "
            f"timm:{bare}, or {bare} alone"
        )
    if not source and bare in OURS:
        if pretrained:
            raise ConfigurationError(
                f"backbone={name!r} is one of ours ({', '.join(OURS)}), which have no pretrained "
                f"weights; leave pretrained out, or name a network of torchvision or timm"
            )
        return OURS[bare]
    known = [] if source else list(OURS)
    if source != "timm":
        of_torchvision = models.list_models(module=models)
        if bare in of_torchvision:
            return partial(_torchvision, bare, pretrained)
        known += of_torchvision
    if source != "torchvision":
        names = _timm_names(required=bool(source))
        if bare in names:
            return partial(_timm, bare, pretrained)
        known += names
    close = difflib.get_close_matches(bare, dict.fromkeys(known), n=5)
    where = source or "ours, torchvision's and timm's"
    raise ConfigurationError(
        f"there is no backbone {bare!r} among {where}; "
        + (f"did you mean {', '.join(close)}?" if close else "resnet32 or resnet18, for example")
    )


def _torchvision(name: str, pretrained: bool) -> nn.Module:
    return _made(partial(models.get_model, name, weights="DEFAULT" if pretrained else None), name)


def _timm(name: str, pretrained: bool) -> nn.Module:
    import timm

    return _made(partial(timm.create_model, name, pretrained=pretrained, num_classes=0), name)


def _made(make: Make, name: str) -> nn.Module:
    try:
        return make()
    except Exception as error:  # a hub, a connection, a file: each has its own
        raise ConfigurationError(
            f"the backbone {name!r} could not be made ({type(error).__name__}: {error}); if it is "
            f"about pretrained weights, check the connection, or leave them out"
        ) from error


def _timm_names(*, required: bool) -> list[str]:
    """With the names of pretrained weights (`resnet18.a1_in1k`) after those of architectures."""
    try:
        import timm
    except ImportError as error:
        if required:
            raise ConfigurationError(
                f"timm is not installed ({error}); pip install timm, or name a network of "
                f"torchvision"
            ) from error
        return []
    return [*timm.list_models(), *timm.list_pretrained()]
