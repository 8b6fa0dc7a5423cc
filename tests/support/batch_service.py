"""A service with a Batch API over real HTTP, as its description says, with the faults it may have."""

from __future__ import annotations

import json
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import RLock
from typing import Any

from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from tests.support.completions import completion
from tests.support.model_server import as_json, failure

MOST_REQUESTS = 50_000
WINDOW = 24 * 3600

Answer = Callable[[dict[str, Any]], Any]
"""What is said to the body of one request: a text or fields, a body, or an HTTP status and a body."""


@dataclass
class FakeBatch:
    """One batch at the service: its *body*, its lines, and how many of these it answers before it *ends*."""

    body: dict[str, Any]
    lines: list[dict[str, Any]]
    most: int | None = None
    ends: str = "completed"
    asked: int = 0


@dataclass
class Faults:
    """What goes wrong next: of each kind of call the responses that come first, and what is done to downloads.

    *calls* are keyed ``METHOD path`` with the first word of the path, as ``POST files``. What is
    *late* is done and answered with that response all the same. *cut* are how many of the next
    downloads break off in the middle.
    """

    calls: dict[str, list[Response]] = field(default_factory=dict)
    late: dict[str, list[Response]] = field(default_factory=dict)
    cut: int = 0


class BatchServer:
    """Answers batches with what *reply* says to each request, in a shuffled order.

    A batch goes on by one step each time it is asked after (*steps*), or at once where there are
    none. The next ones end as *endings* say, each with how many lines are answered. A line is
    *spoilt* by what is done to an output file's lines, and *before* and *after* are called around
    each call. *sent* counts the bodies that were submitted in batches that were taken, and *live*
    those asked one by one.
    """

    steps = ("validating", "in_progress", "finalizing")

    def __init__(
        self, server: HTTPServer, reply: Answer, *, path: str = "/v1", seed: int = 0
    ) -> None:
        self.url = server.url_for(path)
        self.reply = reply
        self.faults = Faults()
        self.endings: list[tuple[str, int]] = []
        self.errors: list[dict[str, Any]] = []
        self.spoil: Callable[[list[str]], list[str]] = lambda lines: lines
        self.files: dict[str, tuple[str, bytes]] = {}
        self.batches: dict[str, FakeBatch] = {}
        self.sent: Counter[str] = Counter()
        self.live: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self.before: Callable[[], None] = lambda: None
        self.after: Callable[[], None] = lambda: None
        self.now: Callable[[], float] = time.time
        self._random = random.Random(seed)
        self._lock = RLock()
        routes = {"files": self._files, "batches": self._batches, "chat": self._chat}
        for name, handle in routes.items():
            pattern = re.compile(rf"{path}/{name}(/.*)?")
            server.expect_request(pattern).respond_with_handler(self._guard(name, handle))

    def finish(self) -> None:
        """Let every batch come to its end."""
        with self._lock:
            for batch in self.batches.values():
                while batch.body["status"] not in ("completed", "failed", "expired", "cancelled"):
                    self._go_on(batch)

    def _guard(
        self, name: str, handle: Callable[[Request, list[str]], Response]
    ) -> Callable[[Request], Response]:
        def respond(request: Request) -> Response:
            with self._lock:
                call = f"{request.method} {name}"
                self.calls[call] += 1
                self.before()
                if self.faults.calls.get(call):
                    return self.faults.calls[call].pop(0)
                response = handle(
                    request, request.path.partition(f"/{name}")[2].strip("/").split("/")
                )
                self.after()
                return self.faults.late[call].pop(0) if self.faults.late.get(call) else response

        return respond

    def _files(self, request: Request, rest: list[str]) -> Response:
        if request.method == "POST":
            upload = request.files["file"]
            id_ = f"file-{len(self.files) + 1}"
            self.files[id_] = (str(upload.filename), upload.read())
            return as_json(self._describe(id_, request.form["purpose"]))
        if rest == [""]:
            data = [self._describe(id_, "batch") for id_ in reversed(self.files)]
            return as_json({"object": "list", "data": data, "has_more": False})
        if rest[0] not in self.files:
            return failure(404, "No such File object")
        content = self.files[rest[0]][1]
        if rest[1:] == ["content"]:
            if self.faults.cut:
                self.faults.cut -= 1
                # Its length is told, and less comes.
                half = iter([content[: len(content) // 2]])
                return Response(
                    half, headers={"Content-Length": str(len(content)), "Connection": "close"}
                )
            return Response(content, content_type="application/jsonl")
        return as_json(self._describe(rest[0], "batch"))

    def _describe(self, id_: str, purpose: str) -> dict[str, Any]:
        name, content = self.files[id_]
        about = {"id": id_, "object": "file", "bytes": len(content), "created_at": int(self.now())}
        return {**about, "filename": name, "purpose": purpose, "status": "processed"}

    def _batches(self, request: Request, rest: list[str]) -> Response:
        if request.method == "POST" and rest == [""]:
            return self._create(request.get_json())
        if rest == [""]:
            return self._list(request)
        batch = self.batches.get(rest[0])
        if batch is None:
            return failure(404, "No such batch")
        if rest[1:] == ["cancel"]:
            if batch.body["status"] in ("completed", "failed", "expired", "cancelled"):
                return failure(409, "Cannot cancel a batch that has ended", code="conflict")
            batch.ends, batch.most = (
                "cancelled",
                batch.most if batch.most is not None else len(batch.lines) // 2,
            )
            batch.body |= {"status": "cancelling", "cancelling_at": int(self.now())}
        else:
            self._go_on(batch)
        return as_json(batch.body)

    def _list(self, request: Request) -> Response:
        ids = list(reversed(self.batches))
        after = request.args.get("after")
        ids = ids[ids.index(after) + 1 :] if after else ids
        most = int(request.args.get("limit", 20))
        data = [self.batches[id_].body for id_ in ids[:most]]
        last = data[-1]["id"] if data else None
        return as_json(
            {"object": "list", "data": data, "last_id": last, "has_more": len(ids) > most}
        )

    def _create(self, asked: dict[str, Any]) -> Response:
        if asked["input_file_id"] not in self.files:
            return failure(
                400, "Invalid input_file_id", code="invalid_value", param="input_file_id"
            )
        content = self.files[asked["input_file_id"]][1]
        lines = [json.loads(line) for line in content.decode().split("\n")[:-1]]
        id_, now = f"batch_{len(self.batches) + 1}", int(self.now())
        body = {
            "id": id_, "object": "batch", "endpoint": asked["endpoint"], "status": "validating", "created_at": now,
            "expires_at": now + WINDOW, "completion_window": asked["completion_window"], "errors": None,
            "input_file_id": asked["input_file_id"], "output_file_id": None, "error_file_id": None,
            "metadata": asked.get("metadata"), "request_counts": {"total": 0, "completed": 0, "failed": 0},
        }  # fmt: skip
        batch = self.batches[id_] = FakeBatch(body, lines)
        if self.endings:
            batch.ends, batch.most = self.endings.pop(0)
        if self.errors or (found := self._validate(lines, asked["endpoint"])):
            batch.ends = "failed"
            body["errors"] = {
                "object": "list",
                "data": [self.errors.pop(0)] if self.errors else found,
            }
        else:
            self.sent.update(json.dumps(line["body"], sort_keys=True) for line in lines)
        return as_json(body)

    def _validate(self, lines: list[dict[str, Any]], endpoint: str) -> list[dict[str, Any]]:
        ids = [line["custom_id"] for line in lines]
        wrong = {
            "empty_file": not lines,
            "duplicate_custom_id": len(set(ids)) < len(ids),
            "too_many_requests": len(lines) > MOST_REQUESTS,
            "mismatched_model": len({line["body"]["model"] for line in lines}) > 1,
            "invalid_url": any(
                (line["method"], line["url"]) != ("POST", endpoint) for line in lines
            ),
            "invalid_custom_id": any(not 0 < len(id_) <= 64 for id_ in ids),
        }
        return [
            {"code": code, "message": code, "line": None} for code, is_so in wrong.items() if is_so
        ]

    def _go_on(self, batch: FakeBatch) -> None:
        """Let *batch* make one step."""
        status = batch.body["status"]
        if status in ("completed", "failed", "expired", "cancelled"):
            return
        if batch.ends == "failed":
            batch.body |= {"status": "failed", "failed_at": int(self.now())}
            return
        batch.body["request_counts"]["total"] = len(batch.lines)
        batch.asked += 1
        if status == "cancelling" or batch.asked >= len(self.steps):
            self._end(batch)
        else:
            batch.body["status"] = self.steps[batch.asked]

    def _end(self, batch: FakeBatch) -> None:
        lines = self._random.sample(batch.lines, len(batch.lines))
        most = len(lines) if batch.most is None else batch.most
        output, errors = [], []
        for line in lines[:most]:
            status, body = self._answer(line["body"])
            said = {"id": f"r{len(output)}", "custom_id": line["custom_id"], "error": None}
            said["response"] = {"status_code": status, "request_id": "q", "body": body}
            (output if status == 200 else errors).append(json.dumps(said, ensure_ascii=False))
        for line in lines[most:]:
            error = {"code": f"batch_{batch.ends}", "message": "This request was not made."}
            errors.append(
                json.dumps(
                    {"id": "r", "custom_id": line["custom_id"], "response": None, "error": error}
                )
            )
        counts = {"total": len(lines), "completed": len(output), "failed": len(errors)}
        batch.body |= {
            "status": batch.ends,
            f"{batch.ends}_at": int(self.now()),
            "request_counts": counts,
        }
        for key, found in (("output_file_id", self.spoil(output)), ("error_file_id", errors)):
            if found:
                id_ = f"file-{len(self.files) + 1}"
                self.files[id_] = (
                    f"{batch.body['id']}_{key}.jsonl",
                    "".join(f"{it}\n" for it in found).encode(),
                )
                batch.body[key] = id_

    def _answer(self, body: dict[str, Any]) -> tuple[int, Mapping[str, Any]]:
        said = self.reply(body)
        if isinstance(said, tuple):
            return said
        if isinstance(said, Mapping) and "choices" in said:
            return 200, said
        return 200, completion(
            said if isinstance(said, str) else json.dumps(said), model=body["model"]
        )

    def _chat(self, request: Request, _: list[str]) -> Response:
        body = request.get_json()
        self.live[json.dumps(body, sort_keys=True)] += 1
        status, said = self._answer(body)
        return as_json(said, status)
