"""Cells of a notebook, in Jupyter's own kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.deploy_world import QUESTION

pytestmark = pytest.mark.thorough

CELL = f"""
from retrieval import qm

rows = [{{"id": "a", "score": 0.9, "text": "Jaco has no health concerns."}}]


@qm.wrap
def retrieve(query, top_k=4):
    return rows[:top_k]


r = retrieve.retrieve({QUESTION!r})
r = await retrieve.aretrieve({QUESTION!r})
"""


@pytest.fixture(scope="module")
def cell(recipes: Path, env: dict[str, str]) -> Iterator[Callable[[str], str]]:
    """Runs a cell; what its last line says, or the error."""
    from jupyter_client.manager import KernelManager

    manager = KernelManager(kernel_name="python3")
    manager.start_kernel(env=env, cwd=str(recipes))
    client = manager.blocking_client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=200)

        def run(code: str) -> str:
            said: list[str] = []

            def hear(message: dict[str, Any]) -> None:
                content = message["content"]
                if message["msg_type"] == "execute_result":
                    said.append(content["data"]["text/plain"])
                elif message["msg_type"] == "error":
                    said.append(f"{content['ename']}: {content['evalue']}")

            client.execute_interactive(code, output_hook=hear, timeout=200)
            return "".join(said)

        yield run
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def test_a_cell_that_wraps_blocks_and_awaits_answers_however_often_it_is_run(
    cell: Callable[[str], str],
) -> None:
    for _ in range(2):
        assert cell(f"{CELL}\nr.status, len(r.matches)") == "('full', 1)"


def test_many_questions_of_one_cell_are_answered_side_by_side(
    cell: Callable[[str], str],
) -> None:
    cell(CELL)
    asked = f"await asyncio.gather(*[retrieve.aretrieve({QUESTION!r} + str(n)) for n in range(8)])"
    assert cell(f"import asyncio\n{{it.status for it in {asked}}}") == "{'full'}"
