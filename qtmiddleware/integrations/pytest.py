"""Define the pytest fixture ``qtm_bench``, which fails a test if retrieval got worse.

    def test_retrieval(qtm_bench):
        qtm_bench(search, "questions.csv", baseline="base.json")

pytest loads this module in every run. To keep pytest's start fast, only the fixture imports the
rest of qtmiddleware.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from qtmiddleware.kit.evaluation.gate import GateResult

UPDATE: Final = "--qtm-update-baseline"
_NAME: Final = "qtm_bench"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the command-line option ``--qtm-update-baseline``."""
    help_ = "Write the baselines of the fixture qtm_bench instead of comparing with them."
    parser.getgroup("qtmiddleware").addoption(UPDATE, action="store_true", help=help_)


@pytest.fixture
def qtm_bench(request: pytest.FixtureRequest) -> Callable[..., GateResult]:
    """Return a function that measures retrieval and fails the test if retrieval got worse.

    Call the returned function with your retrieval function, the file of judged questions and
    ``baseline=``. The other arguments are those of `compare_function_with_baseline`; ``fail_if`` is
    ``"worse"`` by default. Relative paths are relative to pytest's root folder. The result is the
    comparison with the baseline.
    """
    root, update = request.config.rootpath, bool(request.config.getoption(UPDATE))

    def measure_retrieval(
        fn: Callable[..., Any], data: str | Path, *, baseline: str | Path, **options: Any
    ) -> GateResult:
        from qtmiddleware.errors import ConfigError
        from qtmiddleware.kit.evaluation.gated_function import compare_function_with_baseline
        from qtmiddleware.kit.evaluation.reporting import write_headline, write_sentences

        base = root / Path(baseline).expanduser()
        try:
            judged = root / Path(data).expanduser()
            gate = compare_function_with_baseline(
                fn, judged, baseline=base, update=update, **options
            )
        except ConfigError as error:
            if error.path != "--baseline":
                raise
            # The error names the option of `qtm bench`. Somebody who runs pytest needs another one.
            advice = f"{error}, or run pytest with {UPDATE}"
            raise pytest.fail.Exception(advice, pytrace=False) from None
        if gate.verdict == "worse":
            pytest.fail("\n".join(write_sentences(gate)), pytrace=False)
        text = f"The baseline {baseline} was written." if update else write_headline(gate)
        # A property reaches the summary from the workers of pytest-xdist too.
        request.node.user_properties.append((_NAME, text))
        return gate

    return measure_retrieval


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show the verdict of each passed test that used the fixture ``qtm_bench``."""
    lines = [
        f"{report.nodeid}: {text}"
        for report in terminalreporter.stats.get("passed", ())
        for name, text in report.user_properties
        if name == _NAME
    ]
    if lines:
        terminalreporter.section(_NAME)
        for line in lines:
            terminalreporter.write_line(line)
