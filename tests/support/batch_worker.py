"""One step of asking a file of questions by batches, in a process of its own: ``SOURCE OUT URL COMMAND``."""

from __future__ import annotations

import sys

from qtmiddleware.config import Config
from qtmiddleware.kit.bulk.batch.parts import Limits
from qtmiddleware.kit.bulk.batch.transforming import open_batch_work


def main(source: str, out: str, url: str, command: str) -> None:
    config = Config.load({"transformationType": "combined", "llm": {"baseUrl": url}}, environ={})
    with open_batch_work(source, out, config=config, limits=Limits(requests=4)) as (work, _):
        getattr(work, command)()


if __name__ == "__main__":
    main(*sys.argv[1:])
