"""The cost columns of the paper's Table 1 and of its supplement, beside what `profile` counts.

python benchmarks/cost.py

Writes benchmarks/results/cost.md. No training, no random numbers that matter: seconds.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from torch import nn
from torchvision.models import resnet18

from aanets_plugin import convert_to_aanet, profile
from aanets_plugin.baselines import resnet32

MB = 2**20
# (row, blocks, per column: memory, FLOPs, learnable parameters), as printed in the paper
PAPER = [
    ("1", ("all",), ("7.64MB", "70M", "469K"), ("330MB", "1.82G", "11.2M")),
    ("2", ("all",) * 2, ("9.43MB", "140M", "938K"), ("372MB", "3.64G", "22.4M")),
    ("3", ("all", "scaling"), ("9.66MB", "140M", "530K"), ("378MB", "3.64G", "12.6M")),
    ("4", ("all", "frozen"), ("9.43MB", "140M", "469K"), ("372MB", "3.64G", "11.2M")),
    ("5", ("scaling", "frozen"), ("9.66MB", "140M", "60K"), ("378MB", "3.64G", "1.4M")),
    ("S3", ("all",) * 4, ("13.01MB", "280M", "1.9M"), ("456MB", "7.28G", "44.8M")),
    ("S4", ("scaling",), ("7.64MB", "70M", "60K"), ("334MB", "1.82G", "1.4M")),
    ("S5", ("scaling",) * 2, ("9.43MB", "140M", "120K"), ("382MB", "3.64G", "2.8M")),
    ("S6", ("scaling",) * 4, ("13.01MB", "240M", "280K"), ("478MB", "3.64G", "5.6M")),
]
NOTES = """\
Rows S3 to S6 are the supplement's further rows. Memory is 2000 exemplars and all learnable and
frozen parameters, 1 MB = 2^20 bytes. `stem="paired"`, as in the authors' code. CIFAR-100 has the
cosine classifier for 50 classes; ImageNet-Subset is the backbone without its classifier, as the
paper's 1.4M for scaling + frozen shows.

Some of the supplement's figures do not follow from its own definitions: a scaling branch keeps its
frozen kernels beside φ, so S4 to S6 need more memory than all-learnable branches (the paper's
CIFAR-100 column has them equal); 4 x scaling has four times the φ of one branch and one head (not
280K), and four branches take four times the multiply-adds (not 240M, nor 3.64G)."""


def backbone() -> nn.Module:
    model = resnet18()
    model.fc = nn.Identity()
    return model


def cells(build: Callable[[], nn.Module], shape: tuple[int, ...], blocks: tuple[str, ...]) -> list:
    model = build()
    if blocks != ("all",):
        convert_to_aanet(model, blocks=blocks, stem="paired")
    cost = profile(model, shape, exemplars=2000)
    return [f"{cost.memory / MB:.2f}MB", _short(cost.flops), _short(cost.learnable)]


def _short(count: int) -> str:
    for unit, size in (("G", 10**9), ("M", 10**6), ("K", 10**3)):
        if count >= size:
            return f"{count / size:.4g}{unit}"
    return str(count)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results/cost.md")
    args = parser.parse_args()
    columns = [
        ("CIFAR-100, ResNet-32", lambda: resnet32(50), (3, 32, 32)),
        ("ImageNet-Subset, ResNet-18", backbone, (3, 224, 224)),
    ]
    lines = ["# Cost", "", "`python benchmarks/cost.py`", ""]
    for column, (title, build, shape) in enumerate(columns):
        lines += [
            f"### {title}",
            "",
            "| row | blocks | memory | FLOPs | learnable |",
            "|---" * 5 + "|",
        ]
        for row, blocks, *printed in PAPER:
            pairs = zip(cells(build, shape, blocks), printed[column], strict=True)
            texts = [f"{ours} (paper {paper})" for ours, paper in pairs]
            lines.append(f"| {row} | {' + '.join(blocks)} | " + " | ".join(texts) + " |")
        lines.append("")
    text = "\n".join([*lines, NOTES])
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
