"""What the experiments need; where it is not installed, the tests of this folder are skipped."""

import pytest

for package in ("accelerate", "continuum", "sklearn", "torchvision"):
    pytest.importorskip(package)
