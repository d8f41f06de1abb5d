"""A table of the paper as Markdown, CSV and LaTeX: our numbers with the paper's beside them."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from aanets_plugin.budget import MB, Profile, short_count
from aanets_plugin.experiments.paper import numbers
from aanets_plugin.experiments.paper.cells import Cell, Grid
from aanets_plugin.experiments.paper.grids import Row, Table
from aanets_plugin.experiments.results import half_interval
from aanets_plugin.files import write_text

MISSING = "not run"
LEAST = 3
"""The number of seeds from which on a cell has an interval."""


def write_table(grid: Grid, table: Table) -> list[Path]:
    """Write the table to the grid's folder, and return the names of its files."""
    base = grid.output / f"table{table.name}"
    header, rows = cells_as_text(grid, table)
    words = caption(grid, table)
    texts = {
        ".md": f"# Table {table.name}: {table.title}\n\n{markdown(header, rows)}\n\n{words}\n",
        ".csv": as_csv(grid, table),
        ".tex": latex(header, rows, f"{table.title}. {words}"),
    }
    for suffix, text in texts.items():
        write_text(base.with_name(base.name + suffix), text)
    return [base.with_name(base.name + suffix) for suffix in texts]


def cells_as_text(grid: Grid, table: Table) -> tuple[list[str], list[list[str]]]:
    """The header and the rows, each value followed by the paper's."""
    header = ["row", "setting"]
    if table.costs:
        header += ["memory", "paper", "FLOPs", "paper", "learnable", "paper"]
    for phases in grid.phases:
        header += [f"N={phases}", "paper"]
    rows = []
    for row in grid.rows:
        line = [row.key, row.label]
        if table.costs:
            line += _costs(grid, table, row)
        for phases in grid.phases:
            cell = grid.cell(table, row, phases)
            line += ["–" if row.method is None else value_text(cell), _reported(cell.reported)]
        rows.append(line)
    return header, rows


def value_text(cell: Cell) -> str:
    """Mean and 95% interval of three values or more, otherwise the values.

    Examples:
        >>> value_text(Cell([61.0, 62.0, 63.0], 3, None)), value_text(Cell([61.0], 2, None))
        ('62.00 ± 2.48', '61.00 (1 of 2 seeds)')
    """
    if not cell.values:
        return MISSING
    if len(cell.values) >= LEAST:
        text = f"{fmean(cell.values):.2f} ± {half_interval(cell.values):.2f}"
    else:
        text = ", ".join(f"{value:.2f}" for value in cell.values)
    few = len(cell.values) < cell.seeds
    return f"{text} ({len(cell.values)} of {cell.seeds} seeds)" if few else text


def caption(grid: Grid, table: Table) -> str:
    """The settings behind a table, as a paragraph."""
    scale, training = grid.scale, grid.scale.training
    metric = "Average incremental accuracy" if table.metric == "average" else "Last-phase accuracy"
    images = "all" if scale.images_per_class is None else str(scale.images_per_class)
    phases = ", ".join(
        "+".join(map(str, increments[:3])) + ("+…" if len(increments) > 3 else "")
        for increments in (scale.increments(grid.data.classes, n) for n in grid.phases)
    )
    spread = "mean ± 95% interval by Student's t" if len(grid.seeds) >= LEAST else "by seed"
    return (
        f"{metric} in per cent, {spread}, seeds {', '.join(map(str, grid.seeds))}. "
        f"{scale.dataset}, scale {scale.name}: {scale.backbone}, {images} training images and "
        f"{scale.exemplars} exemplars per class, {training.epochs_of(0)} epochs in the first phase "
        f"and {training.epochs} in the others, batches of {training.batch_size}; new classes by "
        f"phase {phases}. {table.note}"
        f"Paper: as the paper reports it, with its own setting. {MISSING.capitalize()}: a run is "
        f"missing."
    )


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table. All columns but the first two are aligned to the right."""
    lines = [header, ["---", "---", *["--:"] * (len(header) - 2)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


_LATEX = {
    "\\": r"\textbackslash{}",
    "±": r"$\pm$",
    "α": r"$\alpha$",
    "θ_base": r"$\theta_{\mathrm{base}}$",
    "–": "--",
    "…": r"\ldots{}",
    "≥": r"$\geq$",
    "%": r"\%",
    "_": r"\_",
    "#": r"\#",
    "&": r"\&",
}


def latex(header: Sequence[str], rows: Sequence[Sequence[str]], words: str) -> str:
    """A table for the package booktabs."""
    lines = [" & ".join(map(_escaped, line)) + r" \\" for line in (header, *rows)]
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            r"\begin{tabular}{ll" + "c" * (len(header) - 2) + "}",
            r"\toprule",
            lines[0],
            r"\midrule",
            *lines[1:],
            r"\bottomrule",
            r"\end{tabular}",
            rf"\caption{{{_escaped(words)}}}",
            r"\end{table}",
            "",
        ]
    )


def _escaped(text: str) -> str:
    """Text for LaTeX: longer symbols first, and each part once."""
    for symbol, command in _LATEX.items():
        if symbol in text:
            before, _, after = text.partition(symbol)
            return _escaped(before) + command + _escaped(after)
    return text


def as_csv(grid: Grid, table: Table) -> str:
    """A line for each row and number of phases, with all values."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        ["table", "dataset", "scale", "row", "setting", "N", "metric", "seeds", "values", "mean"]
        + ["interval", "paper", "paper_interval"]
        + (["memory_bytes", "flops", "learnable", "parameters"] if table.costs else [])
    )
    for row in grid.rows:
        cost: list[object] = []
        if table.costs:
            found = grid.cost(row)
            cost = [found.memory, found.flops, found.learnable, found.parameters]
        for phases in grid.phases:
            cell = grid.cell(table, row, phases)
            values, reported = cell.values, cell.reported
            writer.writerow(
                [
                    *(table.name, grid.scale.dataset, grid.scale.name),
                    *(row.key, row.label, phases, table.metric, len(values)),
                    " ".join(f"{value:.4f}" for value in values),
                    f"{fmean(values):.4f}" if values else "",
                    f"{half_interval(values):.4f}" if len(values) >= LEAST else "",
                    *(("", "") if reported is None else (reported.value, reported.interval)),
                    *cost,
                ]
            )
    return text.getvalue()


def _costs(grid: Grid, table: Table, row: Row) -> list[str]:
    cost: Profile = grid.cost(row)
    ours = [f"{cost.memory / MB:.2f}MB", short_count(cost.flops), short_count(cost.learnable)]
    paper = numbers.COSTS[table.name][row.key].get(grid.scale.dataset, "– – –").split()
    return [text for pair in zip(ours, paper, strict=True) for text in pair]


def _reported(reported: numbers.Reported | None) -> str:
    return "–" if reported is None else reported.text.replace("±", " ± ")
