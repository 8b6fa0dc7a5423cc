"""Ray is asked for by whoever uses it, and by nobody else."""

from __future__ import annotations

import subprocess
import sys

import pytest

from qtmiddleware.errors import MissingExtra
from qtmiddleware.kit.engines.ray import RayEngine


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r'pip install "qtmiddleware\[ray\]"'):
        next(RayEngine().map(lambda: lambda batch: batch, [1]))


def test_nothing_of_ray_is_loaded_before_it_is_used() -> None:
    script = "import sys, qtmiddleware.kit.engines.ray as it; it.RayEngine().close(); print('ray' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=200
    )
    assert done.stdout.strip() == "False"
