"""Tasks of Celery that search, as docs/deploy.md runs them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.deploy_world import IDS, QUESTION, Process, running

pytestmark = pytest.mark.thorough

POOLS: Final = ("prefork", "threads")
TRANSPORT = """
import os
from pathlib import Path
from tasks import app

box = Path(os.environ["BOX"])
app.conf.broker_transport_options = {
    "data_folder_in": str(box / "q"), "data_folder_out": str(box / "q"), "control_folder": str(box / "c"),
    "polling_interval": 0.05,
}
"""


def boxed(folder: Path, pool: str) -> Path:
    for name in ("q", "c", "results"):
        (folder / pool / name).mkdir(parents=True)
    return folder / pool


@pytest.fixture(scope="module")
def apps(
    recipes: Path, env: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Any]]:
    """A client a pool, each with a worker of two that takes what is sent through files."""
    import celery

    (recipes / "tasks_through_files.py").write_text(TRANSPORT, encoding="utf-8")
    boxes = {pool: boxed(tmp_path_factory.mktemp("boxes"), pool) for pool in POOLS}
    made, workers = {}, []
    for pool, box in boxes.items():
        places = {
            "CELERY_BROKER_URL": "filesystem://",
            "CELERY_RESULT_BACKEND": f"file://{box}/results",
        }
        options = ("-A", "tasks_through_files", "worker", "--concurrency", "2", "--pool", pool)
        workers.append(
            Process(recipes, "-m", "celery", *options, env=env | places | {"BOX": str(box)})
        )
        made[pool] = celery.Celery(
            "tasks", broker="filesystem://", backend=places["CELERY_RESULT_BACKEND"]
        )
        folders = {"data_folder_in": str(box / "q"), "data_folder_out": str(box / "q")}
        made[pool].conf.broker_transport_options = {**folders, "control_folder": str(box / "c")}
    with running(*workers):
        yield made


@pytest.mark.parametrize("pool", POOLS)
def test_every_task_of_a_pool_answers_in_full(pool: str, apps: dict[str, Any]) -> None:
    with apps[pool] as app:
        sent = [app.send_task("tasks.search", [f"{QUESTION[:-1]} in year {n}?"]) for n in range(4)]
        found = [it.get(timeout=200, interval=0.02) for it in sent]
    assert [it["status"] for it in found] == ["full"] * 4
    assert all([passage["id"] for passage in it["passages"]] == IDS for it in found)
