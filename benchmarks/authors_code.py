"""The authors' training loops and ours, step by step: do they compute the same?

git clone https://github.com/yaoyao-liu/class-incremental-learning
python benchmarks/authors_code.py class-incremental-learning/adaptive-aggregation-networks

Their functions for LUCIR and for iCaRL train two incremental phases of a small problem in float64,
with their networks, teachers and optimizers. We train the same from the same weights on the same
batches. Writes benchmarks/results/authors_code.md. Less than a minute on one core.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import importlib
import io
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import MultiStepLR

from aanets_plugin import BilevelStrategy, convert_to_aanet, levels, parameter_groups
from aanets_plugin.baselines import LUCIR, CosineLinear, ICaRL, IncrementalNet, Method
from aanets_plugin.baselines.lifecycle import Features, MethodLoss, grow_head, teacher_of
from aanets_plugin.scaling import scaled_layers

OLD, NEW, PHASES, EPOCHS = 4, 2, 2, 2
LR, MOMENTUM, DECAY = 0.05, 0.9, 5e-4
ALPHA_LR = 1e-3  # not their 1e-8, so that an error would show
METHODS: dict[str, Method] = {"lucir": LUCIR(), "icarl": ICaRL(imprint=True)}
NOTES = f"""\
Largest difference to the authors' code after phases 1 and 2, in float64: {OLD} classes, then
{NEW} more in each of {PHASES} phases of {EPOCHS} epochs with two batches of 6 random images; their
ResNet-20 with `branch_1=ss`, `branch_2=free`; learning rate {LR}, of α {ALPHA_LR}, momentum
{MOMENTUM}, weight decay {DECAY}. Ours with `stem="paired"`. Their loop for LUCIR needs one change
for current torch: the target of the ranking loss has the shape of its inputs."""


class State(NamedTuple):
    """A network after a phase: logits of a batch, the weight of the stable branch, φ."""

    logits: Tensor
    alpha: Tensor
    phi: Tensor


def batches(seed: int, classes: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [
        (
            torch.randn(6, 3, 32, 32, generator=generator),
            torch.randint(classes, (6,), generator=generator),
        )
        for _ in range(2)
    ]


def new_samples(phase: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(12, 3, 32, 32, generator=torch.Generator().manual_seed(100 + phase))
    return x, OLD + NEW * (phase - 1) + torch.arange(12) % NEW


PROBE = 999


class Authors:
    """The authors' code in `folder`."""

    def __init__(self, folder: Path) -> None:
        sys.path.insert(0, str(folder))
        load = importlib.import_module
        self.plain: Any = load("models.modified_resnet_cifar")
        self.scaled: Any = load("models.modified_resnetmtl_cifar")
        self.heads: Any = load("models.modified_linear")
        self.run: Any = load("utils.process_fp").process_inputs_fp
        names = {name: f"trainer.incremental_{name}" for name in METHODS}
        self.loops = {n: load(file).incremental_train_and_eval for n, file in names.items()}
        self.options = SimpleNamespace(dataset="cifar100")

    def network(self) -> Any:
        """The network after phase 0, with statistics as a trained one has."""
        torch.manual_seed(0)
        net = self.plain.resnet20(num_classes=OLD)
        for module in net.modules():
            if isinstance(module, nn.BatchNorm2d):
                nn.init.normal_(module.running_mean, 0, 0.1)  # type: ignore[arg-type]
                nn.init.uniform_(module.running_var, 0.5, 1.5)  # type: ignore[arg-type]
                nn.init.uniform_(module.weight, 0.5, 1.5)
        return net

    def train(self, method: str) -> list[State]:
        stable, plastic, plastic_teacher = self.network(), None, None
        alpha = nn.ParameterList([nn.Parameter(torch.tensor([0.5])) for _ in range(3)])
        states = []
        for phase in range(1, PHASES + 1):
            teacher, alpha_before = copy.deepcopy(stable), copy.deepcopy(alpha)
            plastic_teacher = copy.deepcopy(plastic)
            if phase == 1:
                stable = self.scaled.resnetmtl20(num_classes=OLD)
                plastic = self.plain.resnet20(num_classes=OLD)
                for net in (stable, plastic):
                    net.load_state_dict({**net.state_dict(), **teacher.state_dict()})
            old = OLD + NEW * (phase - 1)
            stable.fc = self.grown(stable, plastic, alpha, phase)
            frozen = set(map(id, stable.fc.fc1.parameters()))
            rest = [p for p in stable.parameters() if p.requires_grad and id(p) not in frozen]
            groups = [
                {"params": rest},
                {"params": list(plastic.parameters())},
                {"params": list(stable.fc.fc1.parameters()), "lr": 0.0, "weight_decay": 0.0},
            ]
            usual = {"momentum": MOMENTUM, "weight_decay": DECAY}
            lower = torch.optim.SGD(groups, lr=LR, **usual)
            upper = torch.optim.SGD(alpha, lr=ALPHA_LR, **usual)
            constant = [MultiStepLR(optimizer, [1000]) for optimizer in (lower, upper)]
            balanced = batches(20 + phase, old + NEW)
            weight = 5 * (old / NEW) ** 0.5
            self.loops[method](
                *(self.options, EPOCHS, alpha, alpha_before),
                *(stable, teacher, plastic, plastic_teacher),
                *(lower, constant[0], upper, constant[1]),
                *(batches(10 + phase, old + NEW), balanced[:1], phase, 0, None, None, None),
                *(weight, 0.5, 2, 1, balanced),
                *((2, 0.25) if method == "icarl" else ()),
            )
            stable.eval(), plastic.eval()
            with torch.no_grad():
                logits, _ = self.run(self.options, alpha, stable, plastic, batches(PROBE, 1)[0][0])
            named = stable.named_parameters()
            phi = torch.cat([p.detach().flatten() for n, p in named if n.endswith("mtl_weight")])
            states.append(State(logits, torch.cat([a.detach().clone() for a in alpha]), phi))
        return states

    @torch.no_grad()
    def grown(self, stable: Any, plastic: Any, alpha: Any, phase: int) -> Any:
        """The head of the next phase, with imprinted weights for the new classes."""
        before = stable.fc
        weights = [before.weight] if phase == 1 else [before.fc1.weight, before.fc2.weight]
        head = self.heads.SplitCosineLinear(64, sum(map(len, weights)), NEW)
        head.fc1.weight.copy_(torch.cat(weights))
        head.sigma.copy_(before.sigma)
        stable.eval(), plastic.eval()
        x, y = new_samples(phase)
        features = self.run(self.options, alpha, stable, plastic, x, feature_mode=True)
        means = [F.normalize(features[y == label]).mean(0) for label in y.unique()]
        length = head.fc1.weight.norm(dim=1).mean()
        head.fc2.weight.copy_(length * F.normalize(torch.stack(means)))
        return head


def ours(base: Any, method: Method, loop: str, phi_decay: float | None) -> list[State]:
    head = CosineLinear(64, OLD)
    head.load_state_dict(base.fc.state_dict())
    base.fc = nn.Identity()
    net = IncrementalNet(base, head)
    convert_to_aanet(net.backbone, stem="paired")
    bilevel = BilevelStrategy.official(
        net,
        lr=ALPHA_LR,
        loop=loop,
        phi_decay=phi_decay,
        loss_fn=lambda net, batch: F.cross_entropy(net(batch[0]), batch[1]),
    )
    with bilevel.phase():
        pass  # phase 0 is over
    states = []
    for phase in range(1, PHASES + 1):
        teacher = teacher_of(net)
        x, y = new_samples(phase)
        with torch.no_grad():
            samples = Features(net.eval().features(x), y)
        grow_head(method, net, NEW, samples)
        classes = OLD + NEW * phase
        with bilevel.phase():
            groups = parameter_groups(net, lr=LR, weight_decay=DECAY)
            optimizer = torch.optim.SGD(groups, momentum=MOMENTUM)
            loss = MethodLoss(method, net, teacher)
            for _ in range(EPOCHS):
                net.train()
                for batch in batches(10 + phase, classes):
                    optimizer.zero_grad()
                    loss(*batch).backward()
                    optimizer.step()
                bilevel.after_epoch(batches(20 + phase, classes))
        with torch.no_grad():
            logits = net.eval()(batches(PROBE, 1)[0][0])
        alpha = torch.stack([level.alpha[1] for level in levels(net) if level.alpha is not None])
        phi = torch.cat([layer.phi.detach().flatten() for layer in scaled_layers(net)])
        states.append(State(logits, alpha, phi))
    return states


@contextlib.contextmanager
def on_current_torch() -> Iterator[None]:
    """Let their ranking loss have a target of another shape, and keep the loops quiet."""

    class Ranking(nn.MarginRankingLoss):
        def forward(self, input1: Tensor, input2: Tensor, target: Tensor) -> Tensor:
            return super().forward(input1, input2, target.view_as(input1))

    original, nn.MarginRankingLoss = nn.MarginRankingLoss, Ranking  # type: ignore[misc]
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        nn.MarginRankingLoss = original  # type: ignore[misc]


def distances(one: State, two: State) -> str:
    # The stems of ours and theirs are in another order: φ is compared sorted.
    pairs = [(one.logits, two.logits), (one.alpha, two.alpha)]
    pairs.append((one.phi.sort().values, two.phi.sort().values))
    return " | ".join(f"{float((a - b).abs().max()):.0e}" for a, b in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("code", type=Path, help="their folder adaptive-aggregation-networks")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/authors_code.md"))
    args = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    authors = Authors(args.code)
    columns = "logits | α | φ"
    rows = [
        f"| their loop | ours | phase 1: {columns} | phase 2: {columns} |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, method in METHODS.items():
        with on_current_torch():
            expected = authors.train(name)
        other = next(loop for loop in METHODS if loop != name)
        arms: dict[str, tuple[Method, str, float | None]] = {
            f'`official="{name}"`, `phi_decay={DECAY}`': (method, name, DECAY),
            f'the same with `official="{other}"`': (method, other, DECAY),
            "the same without `phi_decay`": (method, name, None),
        }
        if name == "icarl":
            arms["the same without `imprint=True`"] = (ICaRL(), name, DECAY)
        for arm, options in arms.items():
            results = ours(authors.network(), *options)
            found = [distances(*pair) for pair in zip(expected, results, strict=True)]
            rows.append(f"| {name} | {arm} | {' | '.join(found)} |")
            print(rows[-1])
    text = "\n".join(["# The authors' loops and ours", "", NOTES, "", *rows, ""])
    args.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
