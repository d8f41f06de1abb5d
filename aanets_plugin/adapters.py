"""In a checkout, `aanets_plugin.adapters` is the folder `adapters/` at the top of the same tree.

An installed wheel has the folder inside the package, and Python takes it instead of this file.
"""

from pathlib import Path

__path__ = [str(Path(__file__).parents[1] / "adapters")]
