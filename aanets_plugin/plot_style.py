"""The style of all figures. matplotlib is imported when a figure is made."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aanets_plugin.files import replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PLASTIC, STABLE = "#ed7852", "#3379b5"
"""The colours of the paper's figures. Nothing else is drawn in them."""
INK, GRID = "#22272e", "#d8dce0"
"""The colours of text and axes, and of lines in the background."""
OTHERS = ("#4a9d5b", "#8d63b0", "#c9a227", "#c2508f", "#3aa6a6", "#8a5a44")
"""Colours of curves that are not a branch."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")

_STYLE: Any = {  # matplotlib types the keys
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.labelsize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "pdf.fonttype": 42,  # text that can be searched and edited
    "svg.fonttype": "none",
    "svg.hashsalt": "aanets_plugin",  # the same bytes for the same figure
}


def new_figure(
    width: float, height: float, *, rows: int = 1, columns: int = 1, **options: Any
) -> tuple[Figure, list[Any]]:
    """Return a figure of this size in inches and the list of its axes, row by row.

    `options` are those of matplotlib's `Figure.subplots`.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(rows, columns, squeeze=False, **options)
    return figure, list(axes.flat)


def save(figure: Figure, path: str | PathLike[str], *also: str) -> None:
    """Write the figure to `path`, and with the suffixes `also` (such as ".pdf") beside it."""
    import matplotlib

    for file in (Path(path), *(Path(path).with_suffix(suffix) for suffix in also)):
        # Without a date, a figure that is drawn again has the same bytes.
        dated = {".svg": "Date", ".pdf": "CreationDate"}.get(file.suffix.lower())
        with matplotlib.rc_context(_STYLE):
            options: Any = {"dpi": 150, "metadata": {dated: None} if dated else None}
            with replacing(file) as temporary:
                figure.savefig(temporary, format=file.suffix[1:] or None, **options)


def to_svg(figure: Figure) -> str:
    """Return the figure as an SVG element for a web page.

    Its background is transparent, and text and axes have the colour of the surrounding text.
    """
    import matplotlib

    file = io.StringIO()
    with matplotlib.rc_context(_STYLE):
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    text = file.getvalue()
    text = text[text.index("<svg") :]
    for dark in (INK, "#000000"):  # some texts are made with matplotlib's own colour
        text = text.replace(dark, "currentColor")
    return text


def labelled_ticks(values: Sequence[int], most: int = 11) -> list[int]:
    """Return the values to label on an axis: at equal steps, at most `most`, with the last one.

    A somewhat larger step is taken if the first value gets a label that way.
    """
    steps = len(values) - 1
    least = max(1, math.ceil(steps / (most - 1)))
    step = next((step for step in range(least, 2 * least + 1) if steps % step == 0), least)
    return list(values[::-1][::step][::-1])
