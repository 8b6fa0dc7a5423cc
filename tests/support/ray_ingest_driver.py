"""An ingest by Ray in a process that kills itself when a batch of texts is embedded: ``DATA INDEX``."""

from __future__ import annotations

import os
import signal
import sys

from qtmiddleware.kit.engines.ray import RayEngine
from qtmiddleware.kit.index.ingestion import Progress, ingest
from tests.support.ray_work import WORKERS


def die(step: Progress) -> None:
    if step.stage == "embedding" and step.done:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    data, index = sys.argv[1:]
    config = {"indexPath": index}
    ingest(data, config=config, engine=RayEngine(workers=WORKERS), progress=die)
