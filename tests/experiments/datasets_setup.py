"""Small datasets on disk in the formats of the real ones."""

from __future__ import annotations

import numpy as np
from PIL import Image


def arrays(dataset):
    x, y, _ = dataset.get_data()
    return x, y


def images(labels, seed=0):
    """Random images, and the labels as an array."""
    random = np.random.default_rng(seed)
    return random.integers(0, 256, (len(labels), 32, 32, 3), dtype=np.uint8), np.array(labels)


def write_npz(root, train=(0, 1, 2, 0), test=(2, 1, 0)):
    root.mkdir(exist_ok=True)
    for seed, (name, labels) in enumerate({"train": train, "test": test}.items()):
        x, y = images(labels, seed)
        np.savez(root / f"{name}.npz", x=x, y=y)
    return root


def write_tree(root, train, test, below="val"):
    """Write small grey images into one folder per class; each class has its own grey value."""
    for split, counts in (("train", train), (below, test)):
        for place, (label, count) in enumerate(counts.items()):
            folder = root / split / label
            folder.mkdir(parents=True)
            for number in range(count):
                Image.new("RGB", (40, 30), (20 * place,) * 3).save(folder / f"{number}.png")
    return root
