"""Where the files of the package stand."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE_FOLDERS = {"aanets_plugin": "aanets_plugin", "adapters": "aanets_plugin/adapters"}
