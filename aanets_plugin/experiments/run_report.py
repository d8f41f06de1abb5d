"""report_run: the figures, the summary and the report of a finished run."""

from aanets_plugin.adapters.continuum.phases import Phases
from aanets_plugin.experiments.accuracy_plot import plot_accuracy
from aanets_plugin.experiments.report.page import write_page
from aanets_plugin.experiments.results import Result, write_summary
from aanets_plugin.experiments.run_folder import RunFolder
from aanets_plugin.experiments.run_inspection import inspect_run
from aanets_plugin.experiments.run_state import RunState
from aanets_plugin.levels import levels
from aanets_plugin.plot_style import save
from aanets_plugin.plots import plot_alpha


def report_run(
    folder: RunFolder, result: Result, state: RunState, phases: Phases, command: str
) -> None:
    """Draw the figures and write `summary.md` and `report.html`."""
    method, path = state.method, folder.path
    heading = f"{method.title}: {result.arm}, seed {result.seed}"
    if state.bilevel is not None and state.bilevel.history:
        start = levels(state.net)[0].initial_alpha
        save(plot_alpha(state.bilevel.history, initial=start), path / "alpha.png", ".pdf")
    figure = plot_accuracy([result], rule=method.predicts_by, title=heading)
    save(figure, path / "accuracy.png", ".pdf")
    write_summary(
        path / "summary.md",
        [result],
        heading=heading,
        command=command,
        reported=method.predicts_by,
    )
    if not (path / "cost.json").exists():  # a finished run that is resumed has it
        inspect_run(path, state.net, phases, len(state.exemplars))
    write_page(path)
