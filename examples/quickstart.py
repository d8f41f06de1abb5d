"""Convert ResNets to AANets: their outputs stay the same. Then compare the costs.

python examples/quickstart.py
"""

from __future__ import annotations

import argparse
import copy
from pathlib import Path

import matplotlib
import timm
import torch
import torchvision
from tqdm import tqdm

from aanets_plugin import MemoryBudget, Profile, convert_to_aanet, levels, profile, profile_table
from aanets_plugin.baselines import resnet32
from aanets_plugin.config import EXEMPLARS_PER_CLASS

CIFAR = (3, 32, 32)
BLOCKS = (("all", "scaling"), ("all", "frozen"), ("scaling", "frozen"))


def convert_and_compare(net: torch.nn.Module) -> str:
    """Convert `net`. Returns the change of its outputs and the names of its levels as text."""
    net.eval()
    x = torch.randn(2, 3, 224, 224)
    with torch.no_grad():
        before = net(x)
        after = convert_to_aanet(net)(x)
    difference = (after - before).abs().max() / before.abs().max()
    names = ", ".join(level.name for level in levels(net))
    return f"outputs differ by {difference:.1e} (relative), levels: {names}"


def costs() -> dict[str, Profile]:
    """The costs in the paper's Table 1, for the plain network and three choices of blocks."""
    plain = resnet32(num_classes=100)
    nets = {"plain": plain}
    for blocks in BLOCKS:
        nets["+".join(blocks)] = convert_to_aanet(copy.deepcopy(plain), blocks=blocks)
    return {name: profile(net, CIFAR, exemplars=2000) for name, net in nets.items()}


def draw(profiles: dict[str, Profile], path: Path) -> None:
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    bars = left.bar(list(profiles), [p.learnable / 1e3 for p in profiles.values()])
    left.bar_label(bars, fmt="%.0f")
    left.set_title("learnable parameters (thousands)")
    bars = right.bar(list(profiles), [p.memory / 2**20 for p in profiles.values()], color="C1")
    right.bar_label(bars, fmt="%.2f")
    right.set_title("memory with 2000 exemplars (MB)")
    for axes in (left, right):
        axes.margins(y=0.1)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Convert a timm and a torchvision ResNet to AANets, check that their outputs "
        "stay the same, and show the cost of each choice of blocks on CIFAR-100.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "--output", type=Path, default=Path("runs/quickstart"), help="folder for profile.png"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the random weights and images")
    args = parser.parse_args()
    torch.manual_seed(args.seed)

    networks = {
        "timm resnet10t": lambda: timm.create_model("resnet10t"),
        "torchvision resnet18": lambda: torchvision.models.resnet18(),
    }
    for name, build in (progress := tqdm(networks.items(), desc="converting")):
        progress.write(f"{name}: {convert_and_compare(build())}")

    profiles = costs()
    print(f"\nResNet-32, 100 classes, 2000 exemplars of 32x32:\n\n{profile_table(profiles)}\n")

    budget = MemoryBudget(per_class=EXEMPLARS_PER_CLASS, classes=100, input_shape=CIFAR)
    left = budget.exemplars_for(convert_to_aanet(resnet32(num_classes=100)))
    print(
        f"The memory of the plain network with {EXEMPLARS_PER_CLASS} exemplars per class is enough "
        f"for all+scaling with {left}."
    )

    picture = args.output / "profile.png"
    draw(profiles, picture)
    print(f"The costs as a plot: {picture}")


if __name__ == "__main__":
    main()
