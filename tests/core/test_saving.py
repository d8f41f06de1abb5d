"""A converted model in a folder, and the same model in another process."""

from __future__ import annotations

import copy
import json
import subprocess
import sys

import pytest
import torch
from torch import nn

from aanets_plugin import (
    AlreadyConvertedError,
    ConfigurationError,
    UnsupportedModelError,
    convert_to_aanet,
    freeze_base,
    levels,
    load_aanet,
    load_plain_state_dict,
    save_aanet,
    thaw_base,
)
from aanets_plugin.baselines import (
    CifarResNet,
    CosineLinear,
    IncrementalNet,
    LocalSimilarityClassifier,
    SplitCosineLinear,
)
from aanets_plugin.baselines.network import without_head
from aanets_plugin.saving import read_description
from tests.core.hosts_setup import BLOCKS, STEMS, changed, converted, images, snapshot, vary
from tests.networks import NETWORKS, HeadOverDictNet, relative_error, resnet18, tensors

pytest.importorskip("safetensors")


def assert_same(model, other, x=None):
    """Outputs, state and what learns are the same."""
    x = images(2) if x is None else x
    assert not other.training
    for a, b in zip(tensors(model.eval()(x.clone())), tensors(other(x.clone())), strict=True):
        assert torch.equal(a, b)
        assert a.dtype == b.dtype
    assert not changed(other, model.state_dict())
    ours, theirs = ([n for n, _ in m.named_parameters()] for m in (model, other))
    assert ours == theirs
    assert [type(m) for m in model.modules()] == [type(m) for m in other.modules()]


@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
@pytest.mark.parametrize("frozen", [True, False], ids=["frozen", "base"])
def test_a_model_comes_back_with_the_plain_network_of_the_caller(make, frozen, tmp_path):
    model = converted(make)
    if not frozen:
        thaw_base(model)
    save_aanet(model, tmp_path / "new" / "folder")
    plain = make()
    loaded = load_aanet(tmp_path / "new" / "folder", plain)
    assert loaded is plain
    assert_same(model, loaded)


@pytest.mark.parametrize("stem", STEMS)
@pytest.mark.parametrize("blocks", [*BLOCKS, ("all", "all"), ("all", "scaling", "frozen")])
def test_a_model_comes_back_with_its_blocks_and_stem(blocks, stem, tmp_path):
    alpha = torch.arange(1.0, 1.0 + len(blocks))
    model = converted(blocks=blocks, stem=stem, alpha=(alpha / alpha.sum()).tolist())
    for _ in range(2):  # frozen, then in the base phase, in the same folder
        save_aanet(model, tmp_path)
        loaded = load_aanet(tmp_path)
        assert_same(model, loaded)
        freeze_base(loaded)
        reference = copy.deepcopy(model)
        freeze_base(reference)
        assert not changed(loaded, reference.state_dict())  # the initial α is known, too
        thaw_base(model)
        vary(model)


def cifar(head):
    return lambda: IncrementalNet(without_head(CifarResNet(1, 5)), head)


KNOWN = {
    "aanets_plugin.baselines.CifarResNet": lambda: CifarResNet(2, 7, in_channels=3),
    "torchvision.models.resnet18": lambda: resnet18(num_classes=5),
    "timm.create_model": lambda: pytest.importorskip("timm").create_model("test_resnet"),
    "linear": cifar(nn.Linear(64, 5, bias=False)),
    "cosine": cifar(CosineLinear(64, 5)),
    "split": cifar(SplitCosineLinear(64, 5, 2)),
    "proxies": cifar(LocalSimilarityClassifier(64, [5, 2], 3)),
    "torchvision in a method": lambda: IncrementalNet(
        without_head(resnet18()), SplitCosineLinear(512, 5, 2)
    ),
}


@pytest.mark.parametrize("name", KNOWN)
def test_a_known_network_is_made_by_load_aanet(name, tmp_path):
    model = KNOWN[name]()
    convert_to_aanet(model.backbone if isinstance(model, IncrementalNet) else model)
    vary(model)
    save_aanet(model, tmp_path)
    state = torch.get_rng_state()
    loaded = load_aanet(tmp_path)
    assert torch.equal(torch.get_rng_state(), state)
    assert type(loaded) is type(model)
    assert_same(model, loaded)
    network = read_description(tmp_path)["network"]
    assert network["factory"] == (name if "." in name else "aanets_plugin.baselines.IncrementalNet")


def test_a_network_that_only_looks_like_a_known_one_is_not_made_by_load_aanet(tmp_path):
    pytest.importorskip("torchvision")
    from aanets_plugin.experiments.backbones import resnet18_open

    class Other(CifarResNet):
        def forward(self, x):
            return -super().forward(x)

    save_aanet(convert_to_aanet(Other(1, 5)), tmp_path)
    with pytest.raises(ConfigurationError, match="Pass it"):
        load_aanet(tmp_path)
    save_aanet(convert_to_aanet(resnet18_open()), tmp_path)
    assert read_description(tmp_path)["network"]["factory"].endswith("resnet18_open")


def test_a_fresh_process_gives_the_same_outputs_to_the_bit(tmp_path):
    model, x = converted().eval(), images()
    save_aanet(model, tmp_path)
    torch.save(x, tmp_path / "x.pt")
    script = (
        "import sys, torch\nfrom aanets_plugin import load_aanet\n"
        "folder = sys.argv[1]\n"
        "y = load_aanet(folder)(torch.load(folder + '/x.pt'))\n"
        "torch.save(y, folder + '/y.pt')"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, timeout=120)
    assert torch.equal(torch.load(tmp_path / "y.pt"), model(x))


def test_formats_and_layouts_come_back(tmp_path):
    x = images(2)
    for change in ("double", "bfloat16", "channels_last", "mixed"):
        model = converted()
        if change == "channels_last":
            model = model.to(memory_format=torch.channels_last)
        elif change == "mixed":
            model.layer3.double()
            model.layer3.register_forward_pre_hook(lambda m, args: args[0].double())
            model.fc.double()
        else:
            model, x = getattr(model, change)(), getattr(images(2), change)()
        save_aanet(model, tmp_path)
        loaded = load_aanet(tmp_path)
        assert [v.dtype for v in loaded.state_dict().values()] == [
            v.dtype for v in model.state_dict().values()
        ]
        strides = [v.stride() for v in loaded.state_dict().values()]
        assert strides == [v.stride() for v in model.state_dict().values()]
        if change != "mixed":
            assert_same(model, loaded, x)
        x = images(2)


def test_two_backbones_and_a_tied_weight(tmp_path):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = CifarResNet(1, 5), HeadOverDictNet()
            self.head = nn.Linear(64, 5, bias=False)
            self.tied = self.head

        def forward(self, x):
            return self.a(x) + self.b(x)["logits"] + self.tied(self.a.features(x))

    model = Two()
    convert_to_aanet(model.a, blocks=("all", "frozen"), stem="paired")
    convert_to_aanet(model.b, alpha=(0.3, 0.7))
    save_aanet(vary(model), tmp_path)
    calls = read_description(tmp_path)["conversions"]
    assert [(c["module"], c["stem"], c["blocks"]) for c in calls] == [
        ("a", "paired", ["all", "frozen"]),
        ("b", "stable", ["all", "scaling"]),
    ]
    assert_same(model, load_aanet(tmp_path, Two()))


def test_the_description_is_for_people_too(tmp_path):
    model = converted()
    save_aanet(model, tmp_path, class_names=["Käse", "cat"], phase=3)
    text = json.loads((tmp_path / "aanet.json").read_text(encoding="utf-8"))
    assert text == read_description(tmp_path)
    assert (text["phase"], text["class_names"]) == (3, ["Käse", "cat"])
    assert text["base_frozen"]
    assert text["alpha"] == {level.name: level.alpha.tolist() for level in levels(model)}
    assert text["conversions"][0]["stages"] == ["layer1", "layer2", "layer3"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["aanet.json", "model.safetensors"]


def test_a_crash_loses_neither_the_old_model_nor_the_new_one(tmp_path, monkeypatch):
    import safetensors.torch

    old, new = converted(), converted(lambda: CifarResNet(2, 3), stem="paired")
    save_aanet(old, tmp_path)

    def crash(tensors, file, metadata):
        file.write_bytes(b"half")
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(safetensors.torch, "save_file", crash)
        with pytest.raises(OSError, match="no space"):
            save_aanet(new, tmp_path)
    assert_same(old, load_aanet(tmp_path))
    description = (tmp_path / "aanet.json").read_text(encoding="utf-8")
    save_aanet(new, tmp_path)
    (tmp_path / "aanet.json").write_text(description, encoding="utf-8")  # stopped in between
    assert_same(new, load_aanet(tmp_path))


# What is refused


def test_another_network_is_refused_with_what_differs_and_is_not_changed(tmp_path):
    class Strided(HeadOverDictNet):
        def __init__(self):
            super().__init__()
            self.convnet.conv_1_3x3.stride = (2, 2)

    class Pooled(HeadOverDictNet):
        def __init__(self):
            super().__init__()
            self.convnet.avgpool = nn.AdaptiveMaxPool2d(1)

    class Longer(HeadOverDictNet):
        def __init__(self):
            super().__init__()
            self.convnet.stage_2.append(nn.Conv2d(8, 8, 1))

    save_aanet(converted(HeadOverDictNet), tmp_path)
    wrong = {
        r"fc\.weight: \[5, 8\] there, \[6, 8\] here": lambda: wider(HeadOverDictNet()),
        r"conv_1_3x3: .*stride=\(1, 1\).* there, .*stride=\(2, 2\)": Strided,
        r"avgpool: AdaptiveAvgPool2d there, AdaptiveMaxPool2d here": Pooled,
        r"only here: convnet\.stage_2\.2": Longer,
        r"only there: convnet": lambda: CifarResNet(1, 5),
    }
    for message, make in wrong.items():
        net = make()
        before = snapshot(net)
        with pytest.raises(ConfigurationError, match=message):
            load_aanet(tmp_path, net)
        assert not levels(net)
        assert not changed(net, before)


def wider(net):
    net.fc = nn.Linear(8, 6)
    return net


def test_a_converted_model_is_no_plain_model_and_a_plain_model_is_not_saved(tmp_path):
    model = converted()
    save_aanet(model, tmp_path)
    with pytest.raises(AlreadyConvertedError, match="before convert_to_aanet"):
        load_aanet(tmp_path, model)
    with pytest.raises(UnsupportedModelError, match="save_aanet"):
        save_aanet(CifarResNet(1, 5), tmp_path)
    with pytest.raises(ConfigurationError, match=r"fc\.weight: \[5, 64\] there, \[6, 64\] here"):
        save_aanet(model, tmp_path, network=recipe("CifarResNet", depth=1, num_classes=6))
    assert_same(model, load_aanet(tmp_path))


def recipe(name, **arguments):
    return {"factory": f"aanets_plugin.baselines.{name}", "arguments": arguments}


def edited(**changes):
    def edit(folder):
        file = folder / "aanet.json"
        text = {**json.loads(file.read_text(encoding="utf-8")), **changes}
        kept = {key: value for key, value in text.items() if value != "gone"}
        file.write_text(json.dumps(kept), encoding="utf-8")

    return edit


def cut(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def without_a_tensor(folder):
    from safetensors import safe_open
    from safetensors.torch import save_file

    with safe_open(folder / "model.safetensors", "pt") as file:
        metadata, state = file.metadata(), {k: file.get_tensor(k) for k in file.keys()}  # noqa: SIM118
    del state["layer1.alpha"]
    save_file(state, folder / "model.safetensors", metadata=metadata)


DAMAGE = {
    "truncated": (cut, r"model\.safetensors cannot be read .*truncated"),
    "no-weights": (lambda f: (f / "model.safetensors").unlink(), r"safetensors does not exist"),
    "no-json": (lambda f: (f / "aanet.json").unlink(), r"aanet\.json does not exist"),
    "broken-json": (lambda f: (f / "aanet.json").write_text("{"), r"aanet\.json cannot be read"),
    "list-json": (lambda f: (f / "aanet.json").write_text("[]"), r"aanet\.json cannot be read"),
    "version": (
        edited(format="aanets_plugin model, version 2"),
        r"version 2', must be .*version 1",
    ),
    "no-key": (edited(conversions="gone"), r"aanet\.json has no conversions"),
    "no-tensor": (without_a_tensor, r"does not fit aanet\.json: only here: layer1\.alpha"),
    "code": (
        edited(network={"factory": "os.system", "arguments": {"command": "true"}}),
        r"factory='os.system'.*plain_model",
    ),
    "download": (
        edited(network={"factory": "timm.create_model", "arguments": {"model_name": "hf-hub:x/y"}}),
        r"would read files",
    ),
    "weights": (
        edited(network={"factory": "torch.nn.Linear", "arguments": {"weights": "DEFAULT"}}),
        r"would read weights",
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_folder_is_refused_with_a_reason(name, tmp_path):
    damage, message = DAMAGE[name]
    save_aanet(converted(), tmp_path)
    damage(tmp_path)
    with pytest.raises(ConfigurationError, match=message):
        load_aanet(tmp_path)


def test_a_loaded_model_learns_on_from_new_base_weights(tmp_path):
    save_aanet(converted(), tmp_path)
    model, plain, x = load_aanet(tmp_path), CifarResNet(1, 5).eval(), images()
    load_plain_state_dict(model, plain.state_dict())
    # float32: α-weighted sums of equal branches
    assert relative_error(model(x), plain(x)) < 1e-5
