"""--config: the settings of a run as the start of another one."""

from __future__ import annotations

import dataclasses
import json

import pytest

from aanets_plugin import AANetConfig
from aanets_plugin.baselines import LUCIR, PODNet
from aanets_plugin.errors import ConfigurationError
from aanets_plugin.experiments import Memory, Training, command
from aanets_plugin.experiments.options import make_parser
from aanets_plugin.experiments.request import (
    aanet_config_from,
    check_options,
    complete,
    memory_from,
    setting_from,
)

TRAINING = Training(
    epochs=3, base_epochs=5, batch_size=16, lr=0.02, weight_decay=1e-3, milestones=(0.3, 0.6)
)
AANETS = AANetConfig(blocks=("all", "frozen"), lr=0.1, update_base=True)
CONFIG = {
    "method": PODNet(proxies=3, finetune_epochs=2).settings(),
    "aanets": {
        "blocks": ["all", "frozen"],
        "stem": "stable",
        "alpha_lr": 0.1,
        "balanced_per_class": None,
        "update_base": True,
    },
    "memory": {"per_class": 2, "total": None, "strict": False},
    "training": {
        name: value
        for name, value in dataclasses.asdict(TRAINING).items()
        if name != "channels_last"
    },
    "seed": 4,
    "backbone": "CifarResNet, 1 parameters",
    "data": {"increments": [7, 3], "class_order": [*range(9, -1, -1)]},
    "precision": "bf16",
    "processes": 1,
    "channels_last": True,
    "compile": "no",
    "source": {
        "dataset": "digits",
        "data": None,
        "images_per_class": 9,
        "backbone": "resnet20",
        "pretrained": False,
        "order": "ordermine",
        "memory": {"per_class": 3, "total": None, "strict": True},
    },
}


@pytest.fixture
def write(tmp_path):
    def written(**changes):
        file = tmp_path / "config.json"
        kept = {**CONFIG, **changes}
        file.write_text(json.dumps({k: v for k, v in kept.items() if v != "left out"}))
        return file

    return written


def asked(*options):
    args = make_parser(LUCIR()).parse_args([str(option) for option in options])
    saved = complete(args)
    check_options(args)
    return args, saved


def test_all_settings_come_from_the_file(write):
    args, saved = asked("--config", write())
    setting = setting_from(args, LUCIR(), saved)
    assert setting.training == TRAINING
    assert setting.backbone == "resnet20"
    assert saved.method == PODNet(proxies=3, finetune_epochs=2)
    assert aanet_config_from(args, saved) == AANETS
    assert memory_from(args, setting) == Memory(per_class=3, strict=True)
    assert (args.dataset, args.images_per_class, args.seed) == ("digits", 9, 4)
    assert (args.increments, args.precision, args.compile) == ([7, 3], "bf16", False)
    assert args.order == [("ordermine", [*range(9, -1, -1)])]


def test_explicit_options_override_them(write):
    options = "--epochs 6 --lr 0.5 --phases 2 --memory-total 40 --no-strict-memory --seeds 1 2"
    more = "--order 7 --precision no --blocks all+scaling --backbone resnet8"
    args, saved = asked("--config", write().parent, *options.split(), *more.split())
    setting = setting_from(args, LUCIR(), saved)
    expected = dataclasses.replace(TRAINING, epochs=6, base_epochs=10, lr=0.5)
    assert setting.training == expected
    assert setting.backbone == "resnet8"
    assert aanet_config_from(args, saved) == dataclasses.replace(AANETS, blocks=("all", "scaling"))
    assert memory_from(args, setting) == Memory(total=40)
    assert (args.increments, args.phases, args.seeds) == (None, 2, [1, 2])
    assert (args.order, args.precision) == (["7"], "no")


def test_another_dataset_has_its_own_classes(write):
    args, _ = asked("--config", write(), "--dataset", "cifar100")
    assert (args.increments, args.images_per_class, args.order) == (None, None, ["1993"])


def test_a_file_of_before_needs_the_dataset_and_the_backbone(write):
    old = write(source="left out", channels_last="left out", compile="left out")
    with pytest.raises(ConfigurationError, match=r"does not say the dataset\. Add --dataset"):
        asked("--config", old)
    args, saved = asked("--config", old, "--dataset", "digits", "--backbone", "resnet8")
    assert saved.training.channels_last is False
    assert memory_from(args, setting_from(args, LUCIR(), saved)) == Memory(per_class=2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"training": "left out"}, "is not the config.json of a run .*'training'"),
        ({"training": {**CONFIG["training"], "speed": 1}}, "speed"),
        ({"aanets": {**CONFIG["aanets"], "stem": "stabel"}}, "stem='stabel'"),
    ],
)
def test_a_file_that_is_something_else_is_told(changes, message, write):
    with pytest.raises(ConfigurationError, match=message):
        asked("--config", write(**changes))


def test_a_missing_file_and_a_preset_beside_it_are_told(write, tmp_path):
    with pytest.raises(ConfigurationError, match="no/such: cannot be read"):
        asked("--config", "no/such")
    (tmp_path / "text").write_text("{")
    with pytest.raises(ConfigurationError, match="text: cannot be read"):
        asked("--config", tmp_path / "text")
    with pytest.raises(ConfigurationError, match="--preset paper"):
        asked("--config", write(), "--preset", "paper")


def test_a_run_from_a_config_is_the_same_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tiny = "--increments 8,2 --epochs 1 --images-per-class 4 --memory-per-class 2 --no-aanet"
    command.main(["run", "lucir", *tiny.split(), "--order", "7", "--seed", "3", "--output", "one"])
    first = tmp_path / "one" / "plain-3-order7"
    command.main(["run", "--config", str(first), "--no-aanet", "--output", "two"])

    second = tmp_path / "two" / "plain-3-order7"
    for name in ("config.json", "metrics.jsonl"):
        assert (second / name).read_bytes() == (first / name).read_bytes()
    config = json.loads((first / "config.json").read_text())
    assert config["source"]["backbone"] == "resnet8"
    assert set(CONFIG) == set(config)
