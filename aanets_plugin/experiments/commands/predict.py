"""Predict the classes of images with the network of a run.

    aanets predict runs/lucir/learned-0 cat.jpg dog.jpg
    aanets predict runs/lucir/learned-0 photos --top 5

RUN is the folder of a run, IMAGE a file or a folder of images. Prints the most likely classes of
each image with their scores, by the rule of the method's published results.
"""

import argparse
from pathlib import Path

from aanets_plugin.errors import ConfigurationError
from aanets_plugin.experiments.predictor import load_run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    add = parser.add_argument
    parser.usage = "aanets predict RUN IMAGE… [options]"
    add("run", type=Path, metavar="RUN", help="folder of a run")
    add("images", type=Path, nargs="+", metavar="IMAGE", help="image files or folders of them")
    add("--phase", type=int, default=-1, metavar="N", help="phase, from 0; default: the last one")
    add("--by", choices=("head", "nearest_mean"), help="prediction rule; default: the method's")
    add("--top", type=int, default=3, metavar="N", help="classes per image; default: %(default)s")
    add("--batch-size", type=int, default=64, metavar="N", help="default: %(default)s")
    add("--device", default="cpu", help="cpu, cuda, …; default: %(default)s")


def execute(args: argparse.Namespace) -> None:
    """Print the best classes of each image."""
    files = [file for path in args.images for file in _files(path)]
    predictor = load_run(args.run, args.phase, device=args.device)
    found = predictor.predict(files, by=args.by, batch_size=args.batch_size)
    width = max(len(str(file)) for file in files)
    for file, best in zip(files, found.top(args.top), strict=True):
        print(f"{file!s:{width}}  " + ", ".join(f"{name} {score:.3f}" for name, score in best))


def _files(path: Path) -> list[Path]:
    """The file, or the images in the folder."""
    if not path.is_dir():
        return [path]
    from torchvision.datasets.folder import IMG_EXTENSIONS

    files = sorted(file for file in path.iterdir() if file.suffix.lower() in IMG_EXTENSIONS)
    if not files:
        raise ConfigurationError(f"{path}: has no image. Name image files or a folder of them.")
    return files
