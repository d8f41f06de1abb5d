"""write_page: the page report.html of a run or of a comparison. Needs Jinja2 and Markdown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2

from aanets_plugin.experiments.report import sections
from aanets_plugin.experiments.report.collect import read_finished
from aanets_plugin.experiments.results import UPPER_BOUND, arm_names
from aanets_plugin.experiments.splits import describe_increments
from aanets_plugin.files import write_text


def write_page(folder: str | Path) -> Path:
    """Write `report.html` for the run or the comparison in `folder`; returns its path."""
    folder = Path(folder)
    runs, unfinished = read_finished(folder)
    results = [run.result for run in runs]
    lead = next((run for run in runs if run.result.arm != UPPER_BOUND), runs[0])
    rule = lead.rule
    parts = [
        sections.in_short(runs, rule),
        sections.accuracy(results, rule),
        sections.forgetting(results, rule),
        sections.groups(results, rule),
        *sections.confusion(results, rule),
        *sections.alpha(runs),
        *sections.branches(runs),
        *sections.grad_cam(runs),
        *sections.cost(runs),
        sections.commands(runs, unfinished),
    ]
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__, "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )
    arms = len(arm_names(results))
    heading = f"{lead.method} with and without AANets"
    if arms == 1:
        heading = f"{lead.method}: {results[0].arm}"
    about = describe(lead.config)
    page = environment.get_template("page.html")
    write_text(folder / "report.html", page.render(heading=heading, about=about, sections=parts))
    return folder / "report.html"


def describe(config: dict[str, Any]) -> str:
    """The setting of a run in a sentence."""
    memory, training = config["memory"], config["training"]
    number = f"{memory['per_class']} per class"
    if memory["per_class"] is None:
        number = f"{memory['total']} in total"
    dataset = config.get("source", {}).get("dataset")
    epochs = training["epochs"]
    return (
        f"{f'{dataset}, ' if dataset else ''}{describe_increments(config['data']['increments'])}; "
        f"exemplars: {number}; {config['backbone']}; {training.get('base_epochs') or epochs} "
        f"epochs in the first phase, {epochs} in the others, batch size {training['batch_size']}, "
        f"learning rate {training['lr']:g}."
    )
