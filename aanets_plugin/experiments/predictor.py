"""load_run: the network of a run, for the classes of new images."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from aanets_plugin.baselines import METHODS, Joint
from aanets_plugin.baselines.lifecycle import Backbone, build_network, grow_head
from aanets_plugin.baselines.method import Method, Rule
from aanets_plugin.baselines.network import IncrementalNet
from aanets_plugin.baselines.prediction import mean_distances
from aanets_plugin.checks import positive
from aanets_plugin.convert import convert_to_aanet
from aanets_plugin.errors import ConfigurationError
from aanets_plugin.experiments import checkpoint
from aanets_plugin.experiments.images import Images, as_images, network_input
from aanets_plugin.experiments.network_description import transforms_from
from aanets_plugin.experiments.run_folder import RunFolder, read_json
from aanets_plugin.random_state import random_state_kept
from aanets_plugin.recipes import build


@dataclasses.dataclass(frozen=True)
class Predictions:
    """The predictions for some images."""

    names: list[str]
    """The name of the most likely class of each image."""
    scores: Tensor
    """[images, classes]. By the head: probabilities. By the nearest mean: cosine similarities."""
    class_names: list[str]
    """The names of the columns of `scores`."""

    def top(self, count: int = 3) -> list[list[tuple[str, float]]]:
        """The `count` most likely classes of each image with their scores, best first."""
        best = self.scores.topk(min(count, len(self.class_names)))
        rows = zip(best.values.tolist(), best.indices.tolist(), strict=True)
        return [[(self.class_names[i], v) for v, i in zip(*row, strict=True)] for row in rows]


@dataclasses.dataclass(frozen=True)
class Predictor:
    """The network of a run at the end of a phase, with what it takes to predict classes."""

    net: IncrementalNet
    class_names: list[str]
    """The names of the classes seen so far, in the order of the outputs."""
    phase: int
    transform: Callable[[Any], Tensor]
    """From a PIL image to a tensor, as the run's test images."""
    input_shape: tuple[int, int, int]
    predicts_by: Rule
    """The rule of the method's published results, if the run has what it needs."""
    means: Tensor | None = None
    """The mean feature of each class's exemplars, if the run has exemplars."""

    def predict(
        self,
        images: Images,
        *,
        by: Rule | None = None,
        batch_size: int = 64,
        progress: bool = True,
    ) -> Predictions:
        """Predict the classes of images.

        Args:
            images: An image or several: PIL images, paths, arrays [height, width, channels] or
                tensors [channels, height, width], with values from 0 to 255 as uint8 or from 0 to 1
                as floats; also a batch as one array or tensor. They are transformed as the run's
                test images were.
            by: "head" or "nearest_mean". Default: `predicts_by`.
            batch_size: Images in a forward pass.
            progress: Show a progress bar.
        """
        rule = by or self.predicts_by
        if rule not in ("head", "nearest_mean"):
            raise ConfigurationError(f"by={by!r}: must be 'head' or 'nearest_mean'.")
        if rule == "nearest_mean" and self.means is None:
            raise ConfigurationError(
                "by='nearest_mean': the run has no means of exemplars. Use by='head'."
            )
        size = positive(batch_size, "batch_size")
        items = as_images(images)
        scores = [torch.empty(0, len(self.class_names))]
        with tqdm(total=len(items), desc="predict", unit="image", disable=not progress) as bar:
            for start in range(0, len(items), size):
                batch = [self._input(item) for item in items[start : start + size]]
                scores.append(self._scores(torch.stack(batch), rule))
                bar.update(len(batch))
        joined = torch.cat(scores)
        names = [self.class_names[place] for place in joined.argmax(1).tolist()]
        return Predictions(names, joined, list(self.class_names))

    def _input(self, image: Any) -> Tensor:
        return network_input(image, self.transform, self.input_shape)

    @torch.inference_mode()
    def _scores(self, batch: Tensor, rule: Rule) -> Tensor:
        features = self.net.features(batch.to(next(self.net.parameters()).device))
        if rule == "head":
            return self.net.fc(features).float().softmax(1).cpu()  # type: ignore[no-any-return]
        assert self.means is not None
        # The cosine of unit vectors, from the distance that the measurements of a run compare.
        return 1 - mean_distances(features.cpu(), self.means).square() / 2


def load_run(
    folder: str | Path,
    phase: int = -1,
    *,
    backbone: Backbone | None = None,
    transform: Callable[[Any], Tensor] | None = None,
    device: str | torch.device = "cpu",
) -> Predictor:
    """Return a predictor with the network of a run.

    Args:
        folder: The folder of a run, in which at least one phase has ended.
        phase: The phase after which the network is taken, counted from 0; -1 is the last one.
            Earlier ones need a run with `keep_phases=True` (on the command line --keep-phases).
        backbone: The plain backbone, or a function that makes it. Needed if it is not a network of
            torchvision, timm or this package.
        transform: From a PIL image to a tensor. Needed if the test transforms of the run are others
            than those of torchvision that `load_data` uses.
        device: Where the network computes.

    Example::

        predictor = load_run("runs/lucir/learned-0")
        predictor.predict(["cat.jpg", "dog.jpg"]).names
    """
    files = RunFolder(folder)
    config, network = _json(files, "config.json"), _json(files, "network.json")
    state = _state(files, phase)
    done, data = len(state["rows"]), config["data"]
    method = _method(config["method"])
    if backbone is None:
        if network["backbone"] is None:
            raise ConfigurationError(
                f"{files.path / 'network.json'} does not say how the backbone is made "
                f"({config['backbone']}). Pass it: load_run(folder, backbone=…)."
            )
        backbone = build(network["backbone"])
    if transform is None and network["transforms"] is None:
        raise ConfigurationError(
            f"{files.path / 'network.json'} does not have the transforms of the test images. Pass "
            f"them: load_run(folder, transform=…)."
        )
    shape = tuple(data["input_shape"])
    with random_state_kept():
        net = build_network(backbone, method, data["increments"][0], shape)
        for new in data["increments"][1:done]:
            grow_head(method, net, new)
    if config["aanets"] is not None:
        names = ("blocks", "stem", "stages", "alpha")
        options = {key: config["aanets"][key] for key in names if key in config["aanets"]}
        convert_to_aanet(net.backbone, **options)
    with checkpoint.using(files.phase):
        net.load_state_dict(state["net"])
    means = None if state.get("means") is None else state["means"][1]
    rule: Rule = "head" if means is None else method.predicts_by
    return Predictor(
        net=net.to(device).eval(),
        class_names=network["class_names"][: sum(data["increments"][:done])],
        phase=done - 1,
        transform=transform or transforms_from(network["transforms"]),
        input_shape=shape,
        predicts_by=rule,
        means=means,
    )


def _json(files: RunFolder, name: str) -> dict[str, Any]:
    file = files.path / name
    if not file.is_file():
        inside = sorted(path.parent.name for path in files.path.glob(f"*/{name}"))
        hint = f"Name one of its runs: {', '.join(inside)}." if inside else "Name a run's folder."
        raise ConfigurationError(f"{file} does not exist. {hint}")
    return read_json(file)


def _state(files: RunFolder, phase: int) -> dict[str, Any]:
    """The checkpoint of a phase."""
    last = checkpoint.load(files.phase, checkpoint.PHASE)
    if last is None:
        raise ConfigurationError(f"{files.path}: no phase of this run has ended. Resume it first.")
    done = len(last["rows"])
    wanted = phase + done if phase < 0 else phase
    if wanted == done - 1:
        return last
    kept = checkpoint.load(files.kept(wanted), checkpoint.PHASE) if wanted >= 0 else None
    if kept is None:
        has = [p for p in range(done) if p == done - 1 or files.kept(p).exists()]
        raise ConfigurationError(
            f"phase={phase}: {files.path} has the network after phase "
            f"{', '.join(map(str, has))} only. A run with keep_phases=True (on the command line "
            f"--keep-phases) keeps all of them."
        )
    return kept


def _method(settings: dict[str, Any]) -> Method:
    classes: dict[str, type[Method]] = {**METHODS, Joint.name: Joint}
    name, *_ = settings.values()
    if name not in classes:
        raise ConfigurationError(f"method={name!r}: must be one of {', '.join(classes)}.")
    return classes[name](**{key: value for key, value in settings.items() if key != "name"})
