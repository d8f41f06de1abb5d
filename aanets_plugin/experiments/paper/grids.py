"""The rows of the paper's tables: the method and the variant that each of them runs."""

from __future__ import annotations

from dataclasses import dataclass

from aanets_plugin.errors import ConfigurationError
from aanets_plugin.experiments.paper import numbers


@dataclass(frozen=True)
class Row:
    """A row of a table. Its key is what `--rows` takes and what `numbers.py` has it under."""

    key: str
    label: str
    method: str | None = "lucir"
    """None: the paper has this row from other papers, and nothing is run."""
    variant: str = "plain"
    """A name in `VARIANTS`."""
    equal: bool = False
    """N equal phases, instead of half the classes first."""
    strict: str | None = None
    """Which number of exemplars of a strict budget: that of Table "1" or of the "supplement"."""


@dataclass(frozen=True)
class Table:
    """A table of the paper."""

    name: str
    title: str
    rows: tuple[Row, ...]
    metric: str = "average"
    """"average" incremental accuracy, or "all": the accuracy after the last phase."""
    note: str = ""

    @property
    def costs(self) -> bool:
        """Whether it has the columns memory, FLOPs and parameters."""
        return self.name in numbers.COSTS

    def check(self, dataset: str) -> None:
        """An error if the paper has no such table for one of its datasets."""
        others = numbers.datasets_of(self.name)
        if dataset in numbers.STRICT and dataset not in others:
            raise ConfigurationError(
                f"table {self.name}: the paper has none for {dataset}, only for "
                f"{', '.join(others)}. Use one of these, or digits."
            )

    def chosen(self, keys: list[str] | None) -> list[Row]:
        """The rows with these keys; None: all."""
        known = {row.key: row for row in self.rows}
        wrong = [key for key in keys or [] if key not in known]
        if wrong:
            raise ConfigurationError(
                f"row {wrong[0]!r}: must be one of the rows of table {self.name}, "
                f"{', '.join(known)}."
            )
        return list(self.rows) if keys is None else [row for row in self.rows if row.key in keys]


_METHODS = {"icarl": "iCaRL", "lucir": "LUCIR", "mnemonics": "Mnemonics", "podnet": "PODNet"}
_OTHERS = {"lwf": "LwF", "bic": "BiC", "tpcil": "TPCIL"}

_SAME = (
    "Branches of the same type (all + all, 4 x all, scaling + scaling, 4 x scaling) start from the "
    "same weights and get the same gradients, so that they stay equal: such a row is a network of "
    "one branch whose gradients are divided by the number of branches. "
)

TABLE_1 = Table(
    "1",
    "Ablation study on LUCIR",
    (
        Row("1", 'single branch "all"'),
        Row("2", '"all" + "all"', variant="all_all"),
        Row("3", '"all" + "scaling"', variant="learned"),
        Row("4", '"all" + "frozen"', variant="all_frozen"),
        Row("5", '"scaling" + "frozen"', variant="scaling_frozen"),
        Row("6", "α on imbalanced data", variant="imbalanced"),
        Row("7", "fixed α", variant="fixed"),
        Row("8", "strict memory budget", variant="strict", strict="1"),
    ),
    note=_SAME,
)
TABLE_2 = Table(
    "2",
    "Four methods with and without AANets",
    (
        *(Row(key, label, method=None) for key, label in _OTHERS.items()),
        *(
            Row(f"{method}-{variant}", f"{label}{words}", method, variant)
            for method, label in _METHODS.items()
            for variant, words in (("plain", ""), ("learned", " w/ AANets"))
        ),
    ),
    note="LwF, BiC and TPCIL are not run: the paper has them from other papers. ",
)
TABLE_S1 = Table(
    "s1",
    "Half of the classes first, or equal phases: LUCIR under the strict memory budget",
    (
        Row("half-plain", "half first: LUCIR"),
        Row("half-strict", "half first: w/ AANets", variant="strict", strict="supplement"),
        Row("equal-plain", "equal phases: LUCIR", equal=True),
        Row(
            "equal-update_base",
            "equal phases: w/ AANets, update θ_base",
            variant="update_base",
            equal=True,
            strict="supplement",
        ),
        Row(
            "equal-strict",
            "equal phases: w/ AANets",
            variant="strict",
            equal=True,
            strict="supplement",
        ),
    ),
    metric="all",
)
TABLE_S2 = Table(
    "s2",
    "Four methods with and without AANets under the strict memory budget",
    tuple(
        Row(
            f"{method}-{variant}",
            f"{label}{words}",
            method,
            variant,
            strict="supplement" if variant == "strict" else None,
        )
        for method, label in _METHODS.items()
        for variant, words in (
            ("plain", ""),
            ("strict", " w/ AANets, strict"),
            ("learned", " w/ AANets, as in Table 2"),
        )
    ),
)
TABLE_S3 = Table(
    "s3",
    "More ablation on LUCIR",
    (
        Row("1", 'single branch "all"'),
        Row("2", '"all" + "all"', variant="all_all"),
        Row("3", '4 x "all"', variant="all_x4"),
        Row("4", 'single branch "scaling"', variant="scaling"),
        Row("5", '"scaling" + "scaling"', variant="scaling_scaling"),
        Row("6", '4 x "scaling"', variant="scaling_x4"),
        Row("7", '"all" + "scaling"', variant="learned"),
        Row("8", '"all" + "frozen"', variant="all_frozen"),
        Row("9", '"scaling" + "frozen"', variant="scaling_frozen"),
    ),
    note=_SAME,
)
TABLES = {table.name: table for table in (TABLE_1, TABLE_2, TABLE_S1, TABLE_S2, TABLE_S3)}
