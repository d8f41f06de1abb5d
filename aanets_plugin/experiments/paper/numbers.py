"""The numbers that the paper reports, typed from its text: accuracies and costs.

Keys are those of the rows in `grids.py`. Accuracies are in per cent, for N = 5, 10 and 25 phases.
"""

from __future__ import annotations

from dataclasses import dataclass

PHASES = (5, 10, 25)
"""The paper's N."""

CIFAR, SUBSET, IMAGENET = "cifar100", "imagenet-subset", "imagenet"


@dataclass(frozen=True)
class Reported:
    """An accuracy, and the half width of its 95% interval where the paper has one."""

    text: str
    """As printed, with all its digits."""

    @property
    def value(self) -> float:
        """The accuracy in per cent."""
        return float(self.text.partition("±")[0])

    @property
    def interval(self) -> float | None:
        """The half width of the interval, or None."""
        interval = self.text.partition("±")[2]
        return float(interval) if interval else None


def accuracy(table: str, row: str, dataset: str, phases: int) -> Reported | None:
    """The paper's value of a cell; None if it has none.

    Examples:
        >>> accuracy("2", "lucir-learned", "cifar100", 5)
        Reported(text='66.74±0.37')
        >>> accuracy("1", "1", "digits", 5) is None
        True
    """
    cells = TABLES[table].get(row, {}).get(dataset)
    if cells is None or phases not in PHASES:
        return None
    cell = cells.split()[PHASES.index(phases)]
    return None if cell == "–" else Reported(cell)


def datasets_of(table: str) -> tuple[str, ...]:
    """The datasets for which the paper has this table."""
    return tuple(dict.fromkeys(name for row in TABLES[table].values() for name in row))


TABLE_1 = {
    "1": {CIFAR: "63.17 60.14 57.54", SUBSET: "70.84 68.32 61.44"},
    "2": {CIFAR: "64.49 61.89 58.87", SUBSET: "69.72 66.69 63.29"},
    "3": {CIFAR: "66.74 65.29 63.50", SUBSET: "72.55 69.22 67.60"},
    "4": {CIFAR: "65.62 64.05 63.67", SUBSET: "71.71 69.87 67.92"},
    "5": {CIFAR: "64.71 63.65 62.89", SUBSET: "73.01 71.65 70.30"},
    "6": {CIFAR: "65.91 64.70 63.08", SUBSET: "70.30 69.92 66.89"},
    "7": {CIFAR: "65.89 64.49 62.89", SUBSET: "70.31 68.71 66.34"},
    "8": {CIFAR: "66.46 65.38 61.79", SUBSET: "72.21 69.10 67.10"},
}

TABLE_2 = {
    "lwf": {
        CIFAR: "49.59 46.98 45.51",
        SUBSET: "53.62 47.64 44.32",
        IMAGENET: "44.35 38.90 36.87",
    },
    "bic": {
        CIFAR: "59.36 54.20 50.00",
        SUBSET: "70.07 64.96 57.73",
        IMAGENET: "62.65 58.72 53.47",
    },
    "tpcil": {CIFAR: "65.34 63.58 –", SUBSET: "76.27 74.81 –", IMAGENET: "64.89 62.88 –"},
    "icarl-plain": {
        CIFAR: "57.12±0.50 52.66±0.89 48.22±0.76",
        SUBSET: "65.44±0.35 59.88±0.83 52.97±1.02",
        IMAGENET: "51.50±0.43 46.89±0.35 43.14±0.67",
    },
    "icarl-learned": {
        CIFAR: "64.22±0.42 60.26±0.73 56.43±0.81",
        SUBSET: "73.45±0.51 71.78±0.64 69.22±0.83",
        IMAGENET: "63.91±0.59 61.28±0.49 56.97±0.86",
    },
    "lucir-plain": {
        CIFAR: "63.17±0.87 60.14±0.73 57.54±0.43",
        SUBSET: "70.84±0.69 68.32±0.81 61.44±0.91",
        IMAGENET: "64.45±0.32 61.57±0.23 56.56±0.36",
    },
    "lucir-learned": {
        CIFAR: "66.74±0.37 65.29±0.43 63.50±0.61",
        SUBSET: "72.55±0.67 69.22±0.72 67.60±0.39",
        IMAGENET: "64.94±0.25 62.39±0.61 60.68±0.58",
    },
    "mnemonics-plain": {
        CIFAR: "63.34±0.62 62.28±0.43 60.96±0.72",
        SUBSET: "72.58±0.85 71.37±0.56 69.74±0.39",
        IMAGENET: "64.54±0.49 63.01±0.57 61.00±0.71",
    },
    "mnemonics-learned": {
        CIFAR: "67.59±0.34 65.66±0.61 63.35±0.72",
        SUBSET: "72.91±0.53 71.93±0.37 70.70±0.45",
        IMAGENET: "65.23±0.62 63.60±0.71 61.53±0.29",
    },
    "podnet-plain": {
        CIFAR: "64.83±1.11 63.19±1.31 60.72±1.54",
        SUBSET: "75.54±0.29 74.33±1.05 68.31±2.77",
        IMAGENET: "66.95 64.13 59.17",
    },
    "podnet-learned": {
        CIFAR: "66.31±0.87 64.31±0.90 62.31±1.02",
        SUBSET: "76.96±0.53 75.58±0.74 71.78±0.81",
        IMAGENET: "67.73±0.71 64.85±0.53 61.78±0.61",
    },
}

TABLE_S1 = {
    "half-plain": {CIFAR: "54.3 50.3 48.4", SUBSET: "60.0 57.1 49.3"},
    "half-strict": {CIFAR: "58.6 56.7 53.3", SUBSET: "64.3 58.0 56.5"},
    "equal-plain": {CIFAR: "52.1 44.9 40.6", SUBSET: "60.3 52.5 53.3"},
    "equal-update_base": {CIFAR: "54.3 47.4 42.4", SUBSET: "61.4 52.5 48.2"},
    "equal-strict": {CIFAR: "52.6 46.1 41.9", SUBSET: "68.8 60.8 56.8"},
}

# The paper repeats the rows without AANets and those of Table 2 (in red) here.
TABLE_S2 = {
    **{row: cells for row, cells in TABLE_2.items() if "-" in row},
    "icarl-strict": {
        CIFAR: "63.91±0.52 57.65±0.81 52.10±0.87",
        SUBSET: "71.37±0.57 66.34±0.61 61.87±1.01",
        IMAGENET: "63.65±1.02 61.14±0.59 55.91±0.95",
    },
    "lucir-strict": {
        CIFAR: "66.46±0.45 65.38±0.53 61.79±0.51",
        SUBSET: "72.21±0.87 69.10±0.90 67.10±0.54",
        IMAGENET: "64.83±0.50 62.34±0.65 60.49±0.78",
    },
    # The paper prints an interval of 0.00 on the two smaller datasets.
    "mnemonics-strict": {
        CIFAR: "66.12±0.00 65.10±0.00 61.83±0.00",
        SUBSET: "72.88±0.00 71.50±0.00 70.49±0.00",
        IMAGENET: "65.21±0.76 63.36±0.67 61.37±0.80",
    },
    "podnet-strict": {
        CIFAR: "66.36±1.02 64.31±1.13 61.80±1.24",
        SUBSET: "76.63±0.35 75.00±0.78 71.43±1.51",
        IMAGENET: "67.80±0.87 64.80±0.60 61.01±0.97",
    },
}

TABLE_S3 = {
    "1": TABLE_1["1"],
    "2": TABLE_1["2"],
    "3": {CIFAR: "65.13 64.08 59.40", SUBSET: "70.12 67.31 64.00"},
    "4": {CIFAR: "62.48 61.53 60.17", SUBSET: "71.29 68.88 66.75"},
    "5": {CIFAR: "65.13 64.08 62.50", SUBSET: "71.71 71.07 66.69"},
    "6": {CIFAR: "66.00 64.67 63.16", SUBSET: "72.01 71.23 67.12"},
    "7": TABLE_1["3"],
    "8": TABLE_1["4"],
    "9": TABLE_1["5"],
}

TABLES = {"1": TABLE_1, "2": TABLE_2, "s1": TABLE_S1, "s2": TABLE_S2, "s3": TABLE_S3}

_PLAIN = {CIFAR: "7.64MB 70M 469K", SUBSET: "330MB 1.82G 11.2M"}
_ALL_ALL = {CIFAR: "9.43MB 140M 938K", SUBSET: "372MB 3.64G 22.4M"}
_LEARNED = {CIFAR: "9.66MB 140M 530K", SUBSET: "378MB 3.64G 12.6M"}
_ALL_FROZEN = {CIFAR: "9.43MB 140M 469K", SUBSET: "372MB 3.64G 11.2M"}
_SCALING_FROZEN = {CIFAR: "9.66MB 140M 60K", SUBSET: "378MB 3.64G 1.4M"}

COSTS = {
    "1": {
        "1": _PLAIN,
        "2": _ALL_ALL,
        "3": _LEARNED,
        "4": _ALL_FROZEN,
        "5": _SCALING_FROZEN,
        "6": _LEARNED,
        "7": _LEARNED,
        "8": {CIFAR: "7.64MB 140M 530K", SUBSET: "330MB 3.64G 12.6M"},
    },
    "s3": {
        "1": _PLAIN,
        "2": _ALL_ALL,
        "3": {CIFAR: "13.01MB 280M 1.9M", SUBSET: "456MB 7.28G 44.8M"},
        "4": {CIFAR: "7.64MB 70M 60K", SUBSET: "334MB 1.82G 1.4M"},
        "5": {CIFAR: "9.43MB 140M 120K", SUBSET: "382MB 3.64G 2.8M"},
        "6": {CIFAR: "13.01MB 240M 280K", SUBSET: "478MB 3.64G 5.6M"},
        "7": _LEARNED,
        "8": _ALL_FROZEN,
        "9": _SCALING_FROZEN,
    },
}
"""Memory, FLOPs and learnable parameters as printed, even where they do not add up."""

STRICT_TABLE_1 = {CIFAR: 14, SUBSET: 17}
"""Exemplars per class in row 8 of Table 1 (Section 4.2)."""
STRICT = {CIFAR: 13, SUBSET: 16, IMAGENET: 19}
"""Exemplars per class under the strict budget in Section 4.1 and in the supplement."""
