"""A framework that is missing or too old is named, with what installs it."""

from __future__ import annotations

import sys
from importlib import import_module

import pytest

import qtmiddleware as qtm
from qtmiddleware.integrations import require_package


def test_what_is_too_old_is_refused_with_the_version_that_is_needed() -> None:
    with require_package("pytest", "8.10", extra="langchain"):
        pass
    said = r"pytest 999\.1 or newer \(here is \d.*\[langchain\]"
    with (
        pytest.raises(qtm.MissingExtra, match=said),
        require_package("pytest", "999.1", extra="langchain"),
    ):
        pytest.fail("it was imported")


def test_an_adapter_without_its_framework_says_so_when_it_is_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [it for it in sys.modules if it.partition(".")[0] == "haystack"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "haystack", None)
    monkeypatch.delitem(sys.modules, "qtmiddleware.integrations.haystack", raising=False)
    with pytest.raises(qtm.MissingExtra, match=r'pip install "qtmiddleware\[haystack\]"'):
        import_module("qtmiddleware.integrations.haystack")
