"""A framework that is missing or too old is named, with what installs it."""

from __future__ import annotations

import subprocess
import sys

import pytest

import qtmiddleware as qtm
from qtmiddleware.integrations import require_package


def test_what_is_not_installed_is_named_with_the_command_that_installs_it() -> None:
    with (
        pytest.raises(qtm.MissingExtra) as caught,
        require_package("no-such-framework", "1.0", extra="langchain"),
    ):
        import no_such_framework  # noqa: F401
    assert str(caught.value) == (
        'no-such-framework 1.0 or newer is not installed; run: pip install "qtmiddleware[langchain]"'
    )


def test_what_is_too_old_is_refused_with_the_version_that_is_needed() -> None:
    with (
        pytest.raises(
            qtm.MissingExtra, match=r"pytest 999\.1 or newer \(here is \d.*\[langchain\]"
        ),
        require_package("pytest", "999.1", extra="langchain"),
    ):
        pytest.fail("it was imported")


def test_a_version_is_compared_by_its_numbers() -> None:
    with require_package("pytest", "8.10", extra="langchain"):
        pass


@pytest.mark.parametrize(
    ("framework", "adapter"),
    [("langchain_core", "langchain"), ("llama_index", "llamaindex"), ("haystack", "haystack")],
)
def test_an_adapter_without_its_framework_says_so_when_it_is_imported(
    framework: str, adapter: str
) -> None:
    script = (
        f"import sys\nsys.modules['{framework}'] = None\n"
        "import qtmiddleware.integrations\nimport qtmiddleware as qtm\n"
        f"try:\n    import qtmiddleware.integrations.{adapter}\n"
        "except qtm.MissingExtra as error:\n    print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=200
    )
    assert f'pip install "qtmiddleware[{adapter}]"' in done.stdout
