"""Questions asked in batches at a local service, and what came of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pytest_httpserver import HTTPServer

from qtmiddleware.config import Config
from qtmiddleware.kit.bulk.batch import BatchService, BatchState, BatchStatus, BatchWork
from qtmiddleware.kit.bulk.batch.model import BatchModel
from qtmiddleware.kit.bulk.batch.parts import LIMITS, Limits
from qtmiddleware.kit.bulk.batch.transforming import REPLAYED
from qtmiddleware.types import Transformation
from qtmiddleware.wrapping.query_middleware import QueryMiddleware
from tests.support.batch_service import Answer, BatchServer
from tests.support.bench_world import reply

QUERIES = [f"When was bridge number {number} opened to traffic?" for number in range(12)]


class BatchWorld:
    """A few questions, a service, and one command after the other, as each would be a process of its own."""

    def __init__(
        self, server: HTTPServer, folder: Path, *, answer: Answer = reply, **settings: Any
    ) -> None:
        self.service = BatchServer(server, answer)
        llm = {"baseUrl": self.service.url, **settings.pop("llm", {})}
        given = {"transformationType": "combined", **settings, "llm": llm}
        self.config = Config.load(given, environ={})
        self.questions: list[tuple[str, list[dict[str, str]]]] = [(query, []) for query in QUERIES]
        self.path = folder / "out.batch"
        self.limits: Limits = LIMITS
        self.done: dict[str, Transformation] = {}

    def ask(self, model: BatchModel) -> Iterator[None]:
        with QueryMiddleware(self.config.overridden(REPLAYED), client=model) as middleware:
            for query, history in self.questions:
                if query not in self.done:
                    transformation = middleware.transform(query, history=history)
                    if not model.is_waiting:
                        self.done[query] = transformation
                    yield

    def run(self, command: str, *arguments: Any) -> BatchStatus:
        service = BatchService(self.config.settings)
        try:
            with BatchState(self.path) as state:
                work = BatchWork(self.config.settings, service, state, self.ask, limits=self.limits)
                standing: BatchStatus = getattr(work, command)(*arguments)
                return standing
        finally:
            service.close()

    def submit(self, most_tokens: int | None = None) -> BatchStatus:
        return self.run("submit", most_tokens)

    def finish(self) -> BatchStatus:
        """Let the service end all it has, and collect."""
        self.service.finish()
        return self.run("collect")

    def ask_live(self) -> dict[str, Transformation]:
        """What the questions get one by one."""
        with QueryMiddleware(self.config.overridden(REPLAYED)) as middleware:
            return {
                query: middleware.transform(query, history=history)
                for query, history in self.questions
            }
