"""Questions asked in batches at a service over real HTTP, with everything a batch and a service may do to them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import openai
import pytest
from pytest_httpserver import HTTPServer
from werkzeug import Response

from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import ConfigError, ModelError, StoreError
from qtmiddleware.kit.bulk.batch import BatchService, BatchState, BatchStatus
from qtmiddleware.kit.bulk.batch import service as service_module
from qtmiddleware.kit.bulk.batch import work as work_module
from qtmiddleware.kit.bulk.batch.parts import Limits
from tests.support.batch_world import QUERIES, BatchWorld
from tests.support.bench_world import reply
from tests.support.completions import completion, error
from tests.support.model_server import failure

pytestmark = pytest.mark.thorough

HISTORY = [
    {"role": "user", "content": "Who built Arlo Bridge?"},
    {"role": "assistant", "content": "Ada Lane."},
]
BUSY = {"Retry-After": "0.01"}


@pytest.fixture
def make(
    httpserver: HTTPServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., BatchWorld]:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    monkeypatch.setattr(service_module, "WAITS", (0.01, 0.02, 0.04))
    return lambda **given: BatchWorld(httpserver, tmp_path, **given)


@pytest.fixture
def world(make: Callable[..., BatchWorld]) -> BatchWorld:
    return make()


def said(body: dict[str, Any]) -> str:
    return str(json.loads(body["messages"][-1]["content"])["query"])


def test_what_comes_by_batch_is_what_comes_one_by_one(world: BatchWorld) -> None:
    world.questions += [("And who inspects it?", HISTORY), ("Why?", HISTORY)]
    live = world.ask_live()
    assert world.service.live.total() == 14
    submitted = world.submit()
    assert (submitted.open, submitted.underway, world.done) == (14, 14, {})
    collected = world.finish()
    assert (collected.answered, collected.open, collected.tally.replies) == (14, 0, 14)
    assert {query: asdict(it) for query, it in world.done.items()} == {
        query: asdict(it) for query, it in live.items()
    }
    # The very bodies that are sent one by one.
    assert world.service.sent == world.service.live


def test_equal_questions_are_asked_once(world: BatchWorld) -> None:
    world.questions *= 3
    assert world.submit().underway == len(QUERIES)
    assert world.submit().underway == len(QUERIES)
    assert set(world.service.sent.values()) == {1}


def test_what_depends_on_a_reply_is_asked_when_that_is_there(
    make: Callable[..., BatchWorld],
) -> None:
    def answer(body: dict[str, Any]) -> Any:
        return {**reply(body), "standalone": "Who inspects Arlo Bridge today?"}

    world = make(transformationType="all", answer=answer)
    world.questions = [("And who inspects it?", HISTORY)]
    live = world.ask_live()
    assert world.submit().underway == 1
    first = world.finish()
    assert (first.open, first.missing) == (1, 3)
    assert world.submit().underway == 3
    assert world.finish().open == 0
    assert world.done == live
    assert world.service.sent == world.service.live


def test_files_are_cut_at_the_limits(world: BatchWorld) -> None:
    world.limits = Limits(requests=5)
    submitted = world.submit()
    assert [part.requests for part in submitted.sent] == [5, 5, 2]
    assert world.finish().answered == len(QUERIES)
    world.done.clear()
    world.path = world.path.with_name("other.batch")
    world.limits = Limits(size=9_000)
    submitted = world.submit()
    assert len(submitted.sent) == 6
    assert all(part.size <= 9_000 for part in submitted.sent)
    assert world.finish().answered == len(QUERIES)


def test_no_more_is_queued_than_the_service_queues(world: BatchWorld) -> None:
    seen = []
    for _ in range(20):
        submitted = world.submit(4_000)
        seen.append((submitted.underway, submitted.missing))
        assert sum(part.size for part in submitted.parts if not part.settled) <= 4_000 * 3
        if not world.finish().open:
            break
    assert seen == [(3, 9), (3, 6), (3, 3), (3, 0)]
    assert world.service.sent.total() == len(QUERIES)


@pytest.mark.parametrize("ending", ["expired", "cancelled"])
def test_of_a_batch_that_stops_early_only_the_rest_is_sent_again(
    world: BatchWorld, ending: str
) -> None:
    world.service.endings.append((ending, 7))
    world.submit()
    collected = world.finish()
    assert (collected.answered, collected.open, collected.missing, collected.underway) == (
        7,
        5,
        5,
        0,
    )
    assert collected.tally.failures == {f"batch_{ending}": 5}
    again = world.submit()
    assert [part.requests for part in again.sent] == [5]
    assert world.finish().open == 0
    assert len(world.done) == 12
    assert Counter(world.service.sent.values()) == {1: 7, 2: 5}


def test_a_batch_that_is_cancelled_brings_what_it_had(world: BatchWorld) -> None:
    world.limits = Limits(requests=6)
    world.submit()
    world.run("status")
    cancelled = world.run("cancel")
    assert [part.status for part in cancelled.parts] == ["cancelling", "cancelling"]
    collected = world.finish()
    assert (collected.answered, collected.missing) == (6, 6)
    # One that has ended is left alone.
    assert [part.status for part in world.run("cancel").parts] == ["cancelled", "cancelled"]
    world.submit()
    assert world.finish().open == 0


def test_batches_are_collected_while_others_run(world: BatchWorld) -> None:
    world.limits = Limits(requests=6)
    world.submit()
    batch = world.service.batches["batch_1"]
    while batch.body["status"] != "completed":
        world.service._go_on(batch)
    collected = world.run("collect")
    assert (collected.answered, collected.open, collected.underway, collected.missing) == (
        6,
        6,
        6,
        0,
    )
    assert world.finish().open == 0


def test_a_batch_that_is_not_taken_says_why_and_all_of_it_is_open(world: BatchWorld) -> None:
    world.service.errors.append(
        {"code": "token_limit_exceeded", "message": "Limit: 10 enqueued tokens.", "line": None}
    )
    world.submit()
    collected = world.finish()
    assert collected.parts[0].errors == ["token_limit_exceeded: Limit: 10 enqueued tokens."]
    assert (collected.missing, collected.underway) == (12, 0)
    world.submit()
    assert world.finish().open == 0
    assert set(world.service.sent.values()) == {1}


def test_failed_requests_are_asked_again_and_refused_ones_are_not(world: BatchWorld) -> None:
    bad, busy = QUERIES[0], QUERIES[1]

    def answer(body: dict[str, Any]) -> Any:
        if said(body) == bad:
            return 400, error("The response was filtered", code="content_filter")
        if said(body) == busy and world.service.sent[json.dumps(body, sort_keys=True)] == 1:
            return 503, error("overloaded")
        return reply(body)

    world.service.reply = answer
    world.submit()
    collected = world.finish()
    assert collected.tally.failures == {"HTTP 400": 1, "HTTP 503": 1}
    assert (collected.tally.refused, collected.answered, collected.missing) == (1, 11, 1)
    assert world.done[bad].notes == (("transform.combined", "refused"),)
    assert world.submit().underway == 1
    assert world.finish().open == 0
    assert not world.done[busy].is_empty


def test_replies_that_are_none_are_told_as_they_are_one_by_one(world: BatchWorld) -> None:
    bodies = [
        completion("no JSON at all"),
        completion(None, refusal="I will not"),
        completion("", finish="length"),
        completion('{"rewrite": "When was bridge number 3 op', finish="length"),
        completion(""),
        {**completion("x"), "choices": []},
        {"choices": None},
        completion(None, finish="content_filter"),
    ]

    def answer(body: dict[str, Any]) -> Any:
        at = QUERIES.index(said(body))
        return (200, bodies[at]) if at < len(bodies) else reply(body)

    world.service.reply = answer
    live = world.ask_live()
    world.submit()
    world.finish()
    assert world.done == live
    assert len({it.notes for it in live.values()}) > 4


def test_a_service_that_refuses_json_schemas_is_asked_with_less_in_the_next_batch(
    world: BatchWorld,
) -> None:
    def answer(body: dict[str, Any]) -> Any:
        if "response_format" in body and body["response_format"]["type"] == "json_schema":
            return 400, error(
                "response_format json_schema is not supported", param="response_format"
            )
        return reply(body)

    world.service.reply = answer
    live = world.ask_live()
    world.submit()
    refused = world.finish()
    assert (refused.answered, refused.missing, refused.tally.failures) == (0, 12, {"HTTP 400": 12})
    world.submit()
    assert world.finish().open == 0
    assert world.done == live


def test_lines_that_are_none_are_named_and_foreign_ones_passed_over(world: BatchWorld) -> None:
    foreign = json.dumps(
        {"custom_id": "of-somebody-else", "response": {"status_code": 200, "body": completion("x")}}
    )

    def spoil(lines: list[str]) -> list[str]:
        return [lines[0], lines[0], "{", "[]", "", foreign, *lines[2:]]

    world.service.spoil = spoil
    world.submit()
    collected = world.finish()
    broken = [f"line {number} of the output file of part 1" for number in (3, 4, 5)]
    tally = collected.tally
    assert (tally.broken, tally.repeated, tally.unknown, tally.replies) == (broken, 1, 1, 11)
    assert (collected.answered, collected.missing) == (11, 1)
    world.service.spoil = list
    world.submit()
    assert world.finish().open == 0


def test_a_file_with_fewer_lines_than_are_counted_is_told(world: BatchWorld) -> None:
    world.service.spoil = lambda lines: lines[:4]
    world.submit()
    collected = world.finish()
    assert collected.tally.short == ["the output file of part 1: 4 of 12 lines"]
    assert (collected.answered, collected.missing) == (4, 8)


def test_a_download_that_breaks_off_is_begun_again(world: BatchWorld) -> None:
    world.submit()
    world.service.faults.cut = 2
    assert world.finish().answered == 12
    world.done.clear()


def test_a_download_that_always_breaks_off_is_told_and_taken_up_later(world: BatchWorld) -> None:
    world.submit()
    world.service.faults.cut = 3
    with pytest.raises(ModelError, match="Batch API"):
        world.finish()
    assert world.finish().answered == 12
    assert set(world.service.sent.values()) == {1}


@pytest.mark.parametrize("status", [429, 500])
@pytest.mark.parametrize(
    ("call", "command"),
    [
        *(("POST files", "submit"), ("POST batches", "submit")),
        *(
            ("GET batches", "status"),
            ("GET batches", "finish"),
            ("GET files", "finish"),
            ("GET batches", "cancel"),
        ),
    ],
)
def test_a_busy_service_is_asked_again(
    world: BatchWorld, call: str, command: str, status: int
) -> None:
    if command != "submit":
        world.submit()
    world.service.faults.calls[call] = [failure(status, headers=BUSY) for _ in range(2)]
    world.finish() if command == "finish" else world.run(command)
    if command == "submit":
        world.finish()
    assert world.finish().open == (6 if command == "cancel" else 0)
    assert set(world.service.sent.values()) == {1}


@pytest.mark.parametrize(
    "late", [failure(500), failure(504), Response("{", 200, content_type="application/json")]
)
def test_a_batch_that_was_made_though_nobody_heard_of_it_is_not_made_again(
    world: BatchWorld, late: Response
) -> None:
    world.service.faults.late["POST batches"] = [late]
    try:
        world.submit()
    except ModelError:
        world.submit()
    assert len(world.service.batches) == 1
    assert world.finish().open == 0


def test_a_refused_upload_or_batch_is_told_and_does_not_stand_in_the_way(world: BatchWorld) -> None:
    for call in ("POST files", "POST batches"):
        world.service.faults.calls[call] = [
            failure(400, "no such model here", code="model_not_found")
        ]
        with pytest.raises(
            ModelError, match=r"127.0.0.1 rejected the request \(HTTP 400, code model_not_found\)"
        ):
            world.submit()
    world.submit()
    assert world.finish().open == 0


def test_a_service_without_batches_is_told(world: BatchWorld) -> None:
    world.service.faults.calls["POST files"] = [failure(404)]
    with pytest.raises(ModelError, match=r"127.0.0.1 has no Batch API \(HTTP 404 for /files\)"):
        world.submit()
    world.submit()
    world.service.batches.clear()
    with pytest.raises(
        ModelError, match=r"127.0.0.1 knows no batch_1: is this its key and project\?"
    ):
        world.run("collect")


def test_a_wrong_key_is_told(world: BatchWorld) -> None:
    world.service.faults.calls["POST files"] = [failure(401)]
    with pytest.raises(ModelError, match="rejected the key; check OPENAI_API_KEY"):
        world.submit()


def test_other_clients_and_functions_are_refused() -> None:
    for client in (openai.AsyncOpenAI(api_key="k"), lambda messages: "x", object()):
        with pytest.raises(
            ConfigError, match=r"cannot be used with --batch; use an openai\.OpenAI client"
        ):
            BatchService(Settings(), client)


def test_a_client_of_ones_own_is_asked_and_stays_open(world: BatchWorld) -> None:
    client = openai.OpenAI(api_key="mine", base_url=world.service.url)
    service = BatchService(Settings(), client)
    assert (service.host, service.find_batch("file-1")) == ("127.0.0.1", None)
    service.close()
    assert not client.is_closed()
    client.close()


def test_a_budget_is_asked_before_anything_is_sent(make: Callable[..., BatchWorld]) -> None:
    prices = {"inputPrice": 1.0, "outputPrice": 10.0}
    world = make(budget={"maxUsd": 0.05}, llm=prices)
    with pytest.raises(
        ModelError,
        match=r"budget\.maxUsd allows 0\.05 US dollars; with the next batch the total may be",
    ):
        world.submit()
    assert not world.service.files
    world.config = world.config.overridden({"budget": {"maxUsd": None, "maxTokens": 10_000}})
    with pytest.raises(ModelError, match=r"budget\.maxTokens allows 10,000 tokens"):
        world.submit()
    world.config = world.config.overridden(
        {"budget": {"maxTokens": None, "maxUsd": 0.2, "maxLlmCallsPerMinute": 1}}
    )
    world.submit()
    assert world.finish().open == 0


@pytest.mark.parametrize("count", [-1_000_000_000, float("inf"), float("nan"), "9e999"])
def test_no_budget_forgets_for_what_a_service_says_of_its_tokens(
    make: Callable[..., BatchWorld], count: Any
) -> None:
    def answer(body: dict[str, Any]) -> Any:
        usage = {
            "prompt_tokens": count if said(body) == QUERIES[0] else 100,
            "completion_tokens": 20,
        }
        return {**completion(json.dumps(reply(body))), "usage": usage}

    world = make(budget={"maxTokens": 100_000}, answer=answer)
    world.submit()
    assert world.finish().open == 0
    standing = world.run("status")
    assert standing.spent.written == 12 * 20
    assert standing.spent.read >= 1_100
    world.questions += [(f"Is {number} why? {'x' * 7_000}", []) for number in range(40)]
    world.config = world.config.overridden({"llm": {"maxTokens": 3_000}})
    with pytest.raises(ModelError, match=r"budget\.maxTokens allows 100,000 tokens"):
        world.submit()


def test_what_a_service_says_of_a_batch_need_not_be_what_is_documented(world: BatchWorld) -> None:
    world.submit()
    world.service.finish()
    body = world.service.batches["batch_1"].body
    counts = body["request_counts"]
    body |= {"request_counts": "many", "errors": "none", "expires_at": [1]}
    standing = world.run("status")
    assert (standing.parts[0].completed, standing.parts[0].errors) == (0, [])
    body |= {
        "request_counts": {**counts, "failed": -1},
        "errors": {"data": ["x", {"code": 7, "message": "y" * 300_000}]},
    }
    standing = world.run("collect")
    assert (standing.answered, standing.parts[0].completed, standing.parts[0].failed) == (12, 12, 0)
    assert standing.parts[0].errors == ["y" * 300 + "..."]
    assert json.dumps(standing.to_dict())


def test_a_batch_without_an_id_is_told(world: BatchWorld) -> None:
    world.submit()
    world.service.batches["batch_1"].body["id"] = None
    with pytest.raises(
        ModelError, match=r"the Batch API of 127\.0\.0\.1 sent a batch without an id"
    ):
        world.run("status")


@pytest.mark.parametrize(
    ("endless", "why"),
    [
        (b"{}\n" * 1_000, "it has more than 1,036 lines"),
        (b"x" * 100_000, "it is larger than 1,786,432 bytes"),
    ],
    ids=["lines", "a line"],
)
def test_a_file_without_an_end_is_given_up_and_what_came_is_kept(
    world: BatchWorld, monkeypatch: pytest.MonkeyPatch, endless: bytes, why: str
) -> None:
    monkeypatch.setattr(work_module, "SPARE_BYTES", 1_000_000)
    world.submit()
    world.service.finish()
    file = world.service.batches["batch_1"].body["output_file_id"]
    first, content = world.service.files[file][1].split(b"\n")[:5], chain([b""], repeat(endless))
    world.service.faults.calls["GET files"] = [Response(chain([b"\n".join(first), b"\n"], content))]
    collected = world.run("collect")
    assert (
        collected.tally.broken[-1]
        == f"the rest of the output file of part 1: {why}, and the rest was not read"
    )
    assert (collected.answered, collected.missing) == (5, 7)
    world.submit()
    assert world.finish().open == 0


def test_a_link_in_place_of_a_file_that_was_to_be_sent_is_not_uploaded(world: BatchWorld) -> None:
    world.service.faults.calls["POST files"] = [failure(500, headers=BUSY) for _ in range(9)]
    with pytest.raises(ModelError):
        world.submit()
    part = world.path.with_name("out.batch.part")
    secret = world.path.with_name("secret")
    secret.write_bytes(b"s" * part.stat().st_size)
    part.unlink()
    part.symlink_to(secret)
    world.service.faults.calls.clear()
    world.submit()
    assert not any(b"sss" in content for _, content in world.service.files.values())
    assert world.finish().open == 0


def test_openai_itself_charges_half_by_batch_and_of_others_it_is_not_known(
    world: BatchWorld,
) -> None:
    world.submit()
    others = world.finish().spent
    assert (others.read, others.written, others.batch) == (1_200, 240, None)
    assert others.live is not None
    assert BatchService(Settings()).price_factor == 0.5
    assert BatchService(world.config.settings).price_factor is None


def test_two_commands_at_once_are_refused(world: BatchWorld) -> None:
    with (
        BatchState(world.path),
        pytest.raises(StoreError, match="another command is working with these batches"),
    ):
        world.submit()


def test_a_damaged_state_is_left_as_it_is(world: BatchWorld) -> None:
    world.path.write_bytes(b"not a database, but long enough to be looked at" * 20)
    with pytest.raises(StoreError, match="move the file away to send everything again"):
        world.submit()
    assert world.path.read_bytes().startswith(b"not a database")


def test_a_standing_says_all_of_it_to_programs(world: BatchWorld) -> None:
    world.submit()
    standing: BatchStatus = world.finish()
    plain = json.loads(json.dumps(standing.to_dict()))
    assert plain["parts"][0]["status"] == "completed"
    assert plain["tally"]["replies"] == 12
    assert plain["spent"]["read"] == 1_200
