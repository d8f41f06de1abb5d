"""A model as an ONNX file computes what torch computes, for any batch size."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from aanets_plugin import (
    ConfigurationError,
    UnsupportedModelError,
    convert_to_aanet,
    export_onnx,
    levels,
)
from aanets_plugin.baselines import (
    CifarResNet,
    CosineLinear,
    IncrementalNet,
    LocalSimilarityClassifier,
    SplitCosineLinear,
)
from aanets_plugin.baselines.network import without_head
from tests.core.hosts_setup import changed, converted, images, snapshot, vary
from tests.networks import HeadOverDictNet, relative_error, tensors

for package in ("onnx", "onnxscript", "onnxruntime"):
    pytest.importorskip(package)


def run(file, x):
    import onnxruntime

    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    outputs = session.run(None, {"images": x.numpy()})
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, map(torch.from_numpy, outputs), strict=True))


def method_net():
    net = IncrementalNet(without_head(CifarResNet(1, 5)), SplitCosineLinear(64, 5, 2))
    convert_to_aanet(net.backbone, stem="paired")
    return vary(net)


def torchvision_net():
    """torchvision's ResNet with one block per stage."""
    resnet = pytest.importorskip("torchvision").models.resnet
    return resnet.ResNet(resnet.BasicBlock, [1, 1, 1, 1], num_classes=5)


EXPORTED = {
    "ours": method_net,
    "dict": lambda: converted(HeadOverDictNet, blocks=("all", "scaling", "frozen")),
    "timm": lambda: converted(
        lambda: pytest.importorskip("timm").create_model("test_resnet", num_classes=5)
    ),
    "torchvision": lambda: converted(torchvision_net),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPORTED)
def test_an_onnx_file_computes_what_the_model_does(name, tmp_path):
    net, file = EXPORTED[name]().train(), tmp_path / "new" / "net.onnx"
    before = snapshot(net)
    error = export_onnx(net, file, images(1))
    assert 0 < error < 1e-5  # float32, BatchNorm fused
    assert net.training
    assert not changed(net, before)
    assert [path.name for path in file.parent.iterdir()] == ["net.onnx"]  # no file of weights

    net.eval()
    for count in (1, 3):
        x = images(count)
        with torch.no_grad():
            expected = net(x.clone())
        outputs = run(file, x)
        assert relative_error(list(outputs.values()), expected) < 1e-5
    names = (
        ["fmaps_0", "fmaps_1", "fmaps_2", "features", "logits"] if name == "dict" else ["output"]
    )
    assert list(outputs) == names

    with torch.no_grad():  # the control: α is in the file, not read from the model
        levels(net)[-1].alpha.copy_(levels(net)[-1].alpha.flip(0))
        assert relative_error(list(outputs.values()), tensors(net(x))) > 1e-3


@pytest.mark.parametrize(
    "head",
    [CosineLinear(8, 5), SplitCosineLinear(8, 5, 2), LocalSimilarityClassifier(8, [5, 2], 3)],
    ids=lambda head: type(head).__name__,
)
def test_the_heads_of_the_methods_are_exported(head, tmp_path):
    vary(head)
    export_onnx(head, tmp_path / "head.onnx", torch.randn(2, 8))
    x = torch.randn(5, 8)
    with torch.no_grad():
        # float32
        assert relative_error(run(tmp_path / "head.onnx", x)["output"], head(x)) < 1e-5


class CountsItsBatch(nn.Module):
    def forward(self, x):
        return x.flatten(1) * len([*x])


class Random(nn.Module):
    def forward(self, x):
        return torch.rand_like(x)


class LooksAtItsInput(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


@pytest.mark.parametrize(
    ("net", "message"),
    [(CountsItsBatch(), "batch"), (Random(), "relative error"), (LooksAtItsInput(), "trace")],
    ids=["batch", "random", "values"],
)
def test_a_model_that_cannot_be_exported_is_refused_and_no_file_is_lost(net, message, tmp_path):
    file = tmp_path / "net.onnx"
    file.write_text("what was there")
    with pytest.raises(UnsupportedModelError, match=message):
        export_onnx(net, file, images(2))
    assert file.read_text() == "what was there"
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("example", [None, torch.zeros(0, 3, 8, 8), torch.tensor(1.0)], ids=str)
def test_an_example_must_be_a_batch(example, tmp_path):
    with pytest.raises(ConfigurationError, match=r"torch\.randn\(2, 3, 32, 32\)"):
        export_onnx(converted(), tmp_path / "net.onnx", example)
