"""Models of other vendors: the vendors' own clients, over HTTP, to services that speak the vendors' protocols."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pytest_httpserver import HTTPServer

import qtmiddleware as qtm
from qtmiddleware.config.settings import LlmSettings, Settings
from qtmiddleware.errors import ConfigError, ModelError
from qtmiddleware.protocols import Prompt, Reply, StreamingModel
from qtmiddleware.providers.llms import make_language_model
from qtmiddleware.providers.llms.openai.requests import MOST_REQUESTS, THINKING_TOKENS
from qtmiddleware.providers.openai_client import MOST_ERROR_BYTES
from qtmiddleware.types import Deadline
from tests.support.emitted import ANSWER, PASSAGE, QUERY, listening
from tests.support.vendor_services import KEY, VENDORS, Said, VendorService

pytestmark = pytest.mark.thorough

TEXT = Said().text


@pytest.fixture(params=list(VENDORS))
def service(request: pytest.FixtureRequest, httpserver: HTTPServer) -> Iterator[VendorService]:
    made = VENDORS[request.param](httpserver)
    yield made
    made.released.set()


Ask = Callable[..., Reply]


@pytest.fixture(params=["sync", "async"])
def way(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "async")


def model_of(
    service: VendorService, way: bool, model: str | None = None, client: Any = None, **llm: Any
) -> Any:
    options = Settings(transformation_model=model or service.model, llm=LlmSettings(**llm))
    return make_language_model(client or service.client(is_async=way), options)


def ask(model: Any, way: bool, prompt: Prompt, seconds: float = 30.0) -> Reply:
    deadline = Deadline.after(seconds)
    return (
        asyncio.run(model.acomplete(prompt, deadline)) if way else model.complete(prompt, deadline)
    )


def listen(model: Any, way: bool, prompt: Prompt, seconds: float = 30.0) -> list[Any]:
    deadline = Deadline.after(seconds)

    async def gather() -> list[Any]:
        return [piece async for piece in model.astream(prompt, deadline)]

    return asyncio.run(gather()) if way else list(model.stream(prompt, deadline))


def fail(
    model: Any, way: bool, prompt: Prompt, seconds: float = 30.0, *, streams: bool = False
) -> ModelError:
    with pytest.raises(ModelError) as caught:
        (listen if streams else ask)(model, way, prompt, seconds)
    assert KEY not in str(caught.value)
    return caught.value


# --- what is asked and answered -------------------------------------------------------------------


def test_a_reply_comes_with_its_text_tokens_and_cost(service, way, prompt) -> None:
    model = model_of(service, way)
    reply = ask(model, way, prompt)
    assert (reply.text, reply.input_tokens, reply.output_tokens, reply.calls) == (TEXT, 100, 20, 1)
    assert reply.cost_usd == model.prices.compute_cost(100, 20)
    assert reply.cost_usd > 0
    assert not reply.truncated
    assert model.name == service.model
    assert isinstance(model, StreamingModel)
    assert any(KEY in value for value in service.headers[0].values())
    assert "host='" in repr(model)


@pytest.mark.parametrize("streams", [False, True])
def test_a_reply_names_its_model_and_itself_as_the_service_does(
    service, way, prompt, streams: bool
) -> None:
    model = model_of(service, way)
    reply = listen(model, way, prompt)[-1] if streams else ask(model, way, prompt)
    assert reply.model == service.model
    assert reply.id in ("m", "c", "g")
    address = urlsplit(service.url)
    assert model.server == (address.hostname, address.port)


def test_prices_of_the_settings_go_first(service, way, prompt) -> None:
    assert (
        ask(model_of(service, way, input_price=1e6, output_price=0.0), way, prompt).cost_usd == 100
    )


def test_a_model_without_a_known_price_costs_nobody_knows_what(service, way, prompt) -> None:
    assert ask(model_of(service, way, model="my-own-model"), way, prompt).cost_usd is None


def test_the_fields_of_a_reply_are_asked_for_as_the_vendor_does(service, way, prompt) -> None:
    ask(model_of(service, way), way, prompt)
    body = service.bodies[0]
    schemas = {
        "anthropic": lambda: body["output_config"]["format"]["schema"],
        "mistral": lambda: body["response_format"]["json_schema"]["schema"],
        "google": lambda: body["generationConfig"]["responseJsonSchema"],
    }
    schema = schemas[service.name]()
    assert list(schema["properties"]) == [field.name for field in prompt.fields]
    assert schema["additionalProperties"] is False


def test_instructions_and_question_are_sent_apart(service, way, prompt) -> None:
    ask(model_of(service, way), way, prompt)
    body = service.bodies[0]
    system = {
        "anthropic": lambda: body["system"],
        "mistral": lambda: body["messages"][0]["content"],
        "google": lambda: body["systemInstruction"]["parts"][0]["text"],
    }
    assert system[service.name]() == prompt.system
    assert json.dumps(prompt.user)[1:-1] in json.dumps(body)


def test_limits_and_temperatures_of_the_settings_are_sent(service, way, prompt) -> None:
    ask(model_of(service, way, max_tokens=333, temperature=0.5), way, prompt)
    sent = json.dumps(service.bodies[0])
    assert "333" in sent
    assert '"temperature": 0.5' in sent


def test_no_limit_is_the_vendors_own_or_one_it_takes(service, way, prompt) -> None:
    ask(model_of(service, way, max_tokens=None, temperature=None), way, prompt)
    sent = json.dumps(service.bodies[0])
    assert "temperature" not in sent
    assert ("max_tokens" in sent) == (service.name == "anthropic")


def test_a_stream_comes_in_pieces_and_ends_with_the_whole(service, way, prompt) -> None:
    *pieces, reply = listen(model_of(service, way), way, prompt)
    texts = [it for it in pieces if isinstance(it, str)]
    assert len(texts) == 2
    assert "".join(texts) == TEXT == reply.text
    assert (reply.input_tokens, reply.output_tokens) == (100, 20)
    assert reply.cost_usd > 0


@pytest.mark.parametrize("streams", [False, True])
def test_what_the_model_says_to_itself_is_no_part_of_the_text(
    service, way, prompt, streams: bool
) -> None:
    service.said = Said(thinks=True)
    assert ask(model_of(service, way), way, prompt).text == TEXT


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(text=st.text(min_size=1).filter(lambda it: it.strip() and it.isprintable()))
def test_any_text_arrives_as_it_was_said_whole_or_in_pieces(
    service, make_prompt, text: str
) -> None:
    service.said = Said(text=text)
    model = model_of(service, False)
    prompt = make_prompt(text, fields=())
    assert model.complete(prompt, Deadline.after(30)).text == text
    assert listen(model, False, prompt)[-1].text == text
    assert json.dumps(text)[1:-1] in json.dumps(service.bodies[-1])


def test_a_middleware_asks_it_and_so_do_its_answers(service, way) -> None:
    rows = [{"id": str(n), "score": 0.9 - n / 10, "text": f"Jaco is healthy {n}"} for n in range(5)]
    limits = {"llmTimeoutMs": 20_000, "deadlineMs": 50_000}
    chosen = {
        "transformationType": "rewrite",
        "transformationModel": service.model,
        "limits": limits,
    }
    with qtm.QueryMiddleware(chosen, client=service.client(is_async=way)) as qm:
        search = qm.wrap(lambda query, top_k=3: rows[:top_k])
        found = search.retrieve("Does Jaco have any health concerns?")
        assert (found.status, found.degradations) == ("full", ())
        assert "Jaco health" in [variant.text for variant in found.variants]
        service.said = Said(text="Jaco is healthy [1].")
        assert "healthy" in search.answer("Does Jaco have any health concerns?").text
        assert "".join(search.stream_answer("Is Jaco well?")).startswith("Jaco is healthy")
        assert qm.health().chat_model.name == service.model


def test_the_default_model_of_openai_is_not_sent_to_another_vendor(service, way) -> None:
    with pytest.raises(ConfigError, match="set transformationModel") as caught:
        qtm.QueryMiddleware({"transformationType": "rewrite"}, client=service.client(is_async=way))
    assert caught.value.path == "transformationModel"
    for key in ("transformationModel", "chatModel"):
        with qtm.QueryMiddleware({key: service.model}, client=service.client(is_async=way)) as qm:
            assert {qm.health().model.name, qm.health().chat_model.name} == {service.model}
    assert service.bodies == []


def test_another_model_answers_where_that_is_named(service) -> None:
    chosen = {"transformationModel": service.model, "chatModel": "another"}
    with qtm.QueryMiddleware(chosen, client=service.client()) as qm:
        assert (qm.health().model.name, qm.health().chat_model.name) == (service.model, "another")


# --- bad days -------------------------------------------------------------------------------------


@pytest.mark.parametrize("streams", [False, True])
def test_a_refusal_is_told(service, way, prompt, streams: bool) -> None:
    service.said = Said(end="refused")
    assert fail(model_of(service, way), way, prompt, streams=streams).reason == "refused"


def test_a_question_that_google_blocks_is_refused(httpserver: HTTPServer, way, prompt) -> None:
    google = VENDORS["google"](httpserver)
    google.said = Said(end="blocked")
    assert fail(model_of(google, way), way, prompt).reason == "refused"


@pytest.mark.parametrize("streams", [False, True])
def test_a_reply_that_was_cut_off_says_so(service, way, prompt, streams: bool) -> None:
    service.said = Said(end="length")
    model = model_of(service, way)
    reply = listen(model, way, prompt)[-1] if streams else ask(model, way, prompt)
    assert reply.truncated
    assert reply.text == TEXT


def test_a_limit_that_leaves_no_text_is_truncated(service, way, prompt) -> None:
    service.said = Said(text="", end="length")
    assert fail(model_of(service, way), way, prompt).reason == "truncated"


def test_no_text_is_empty(service, way, prompt) -> None:
    service.said = Said(text=" ")
    assert fail(model_of(service, way), way, prompt).reason == "empty"


REASONS = {
    401: "unauthorized",
    403: "unauthorized",
    404: "rejected",
    408: "timeout",
    409: "rejected",
    413: "too_long",
    429: "rate_limited",
    500: "unavailable",
    503: "unavailable",
    529: "unavailable",
}


@pytest.mark.parametrize("status", REASONS)
@pytest.mark.parametrize("streams", [False, True])
def test_a_status_has_its_reason_and_costs_one_request(
    service, way, prompt, status: int, streams: bool
) -> None:
    service.said = Said(status=status)
    client = service.client(is_async=way, retries=3)
    caught = fail(model_of(service, way, client=client), way, prompt, streams=streams)
    assert caught.reason == REASONS[status]
    assert f"HTTP {status}" in str(caught)
    assert len(service.bodies) == 1  # the client's own retries are not used
    if caught.reason == "unauthorized":
        assert "_API_KEY" in str(caught)
        assert "OPENAI" not in str(caught)


CAUSES = {
    "prompt is too long: 210000 tokens > 200000 maximum": "too_long",
    "The input token count exceeds the maximum number of tokens allowed": "too_long",
    "API key not valid. Please pass a valid API key.": "unauthorized",
    "Blocked by guardrail": "refused",
}


@pytest.mark.parametrize("message", CAUSES)
def test_a_cause_that_stands_in_the_message_alone_is_read(
    service, way, make_prompt, message: str
) -> None:
    service.said = Said(status=400, message=message)
    assert fail(model_of(service, way), way, make_prompt(fields=())).reason == CAUSES[message]


def test_how_long_to_leave_it_alone_is_read(service, way, prompt) -> None:
    service.said = Said(status=429, headers={"retry-after": "7"})
    assert fail(model_of(service, way), way, prompt).retry_after == 7


def test_how_long_google_says_in_the_body_is_read(httpserver: HTTPServer, way, prompt) -> None:
    google = VENDORS["google"](httpserver)
    details = [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34.5s"}]
    google.said = Said(
        status=429, raw=json.dumps({"error": {"code": 429, "message": "no", "details": details}})
    )
    assert fail(model_of(google, way), way, prompt).retry_after == 34.5


@pytest.mark.parametrize(
    "raw", ["", "<html>", "{}", "[1]", "null", '{"content": 7, "choices": 7, "candidates": []}']
)
@pytest.mark.parametrize("content_type", ["application/json", "text/html"])
@pytest.mark.parametrize("streams", [False, True])
def test_garbage_is_an_error_of_the_model_and_no_crash(
    service, way, prompt, raw: str, content_type: str, streams: bool
) -> None:
    service.said = Said(raw=raw, content_type=content_type)
    assert fail(model_of(service, way), way, prompt, streams=streams).reason in (
        "unparsable",
        "empty",
        "unavailable",
    )


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    status=st.sampled_from([200, 400, 401, 404, 418, 422, 429, 500, 529, 599]),
    raw=st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=20),
        lambda it: st.lists(it, max_size=3) | st.dictionaries(st.sampled_from(
            ["error", "message", "type", "code", "details", "status", "content", "choices", "candidates", "usage"]
        ), it, max_size=4),
    ).map(json.dumps) | st.text(max_size=30),
)  # fmt: skip
def test_whatever_a_service_says_is_a_reply_or_an_error_of_the_model(
    service, make_prompt, status, raw
) -> None:
    service.said = Said(status=status, raw=raw)
    model, prompt = model_of(service, False), make_prompt()
    for call in (ask, listen):
        said = ""
        with suppress(ModelError):
            try:
                call(model, False, prompt)
            except ModelError as error:
                said = str(error)
                raise
        assert prompt.query not in said


@pytest.mark.parametrize("streams", [False, True])
def test_a_service_that_hangs_is_given_up_at_the_deadline(
    service, way, prompt, streams: bool
) -> None:
    service.said = Said(hangs=True)
    assert fail(model_of(service, way), way, prompt, 1.0, streams=streams).reason == "timeout"
    service.released.set()


def test_a_deadline_that_has_passed_asks_nobody(service, way, prompt) -> None:
    assert fail(model_of(service, way), way, prompt, 0.0).reason == "timeout"
    assert service.bodies == []


def test_a_stream_that_breaks_off_is_no_answer(service, way, prompt) -> None:
    service.said = Said(breaks=True)
    assert fail(model_of(service, way), way, prompt, streams=True).reason == "unavailable"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_stream_that_fails_in_the_middle_says_why(service, way, prompt) -> None:
    service.said = Said(error=True)
    assert fail(model_of(service, way), way, prompt, streams=True).reason == "unavailable"


def test_nobody_there_is_unavailable(service, way, prompt) -> None:
    service.url = "http://localhost:1"
    caught = fail(model_of(service, way), way, prompt)
    assert caught.reason == "unavailable"
    assert "the client's address" in str(caught)


# --- what a model does not take -------------------------------------------------------------------

SCHEMAS = {"anthropic": "output_config", "mistral": "json_schema", "google": "responseJsonSchema"}


def test_a_model_without_structured_output_is_asked_in_plain_words_and_that_is_remembered(
    service, way, prompt
) -> None:
    service.refuses = ("output_config", "response_format", "responseMimeType")
    model = model_of(service, way)
    first, second = ask(model, way, prompt), ask(model, way, prompt)
    assert first.text == second.text == TEXT
    assert first.calls > 1
    assert second.calls == 1
    assert SCHEMAS[service.name] not in json.dumps(service.bodies[-1])


def test_a_schema_alone_may_be_refused(service, way, prompt) -> None:
    service.refuses = (SCHEMAS[service.name],)
    assert ask(model_of(service, way), way, prompt).calls == 2


def test_a_temperature_is_left_out_where_it_is_refused(service, way, prompt) -> None:
    service.refuses = ("temperature",)
    assert ask(model_of(service, way), way, prompt).calls == 2


def test_a_request_that_is_refused_for_no_reason_is_not_put_for_ever(service, way, prompt) -> None:
    service.said = Said(status=400, message="something is wrong")
    assert fail(model_of(service, way), way, prompt).reason == "rejected"
    assert len(service.bodies) <= MOST_REQUESTS


THINKING = [
    ("anthropic", "claude-sonnet-4-6", "auto", None, 0, True),
    ("anthropic", "anthropic.claude-3-haiku-20240307-v1:0", "auto", None, 0, True),
    ("anthropic", "claude-opus-5-5", "auto", {"type": "disabled"}, 0, False),
    ("anthropic", "claude-opus-4-8", "auto", {"type": "disabled"}, 0, False),
    ("anthropic", "claude-opus-5-5", "low", None, THINKING_TOKENS, False),
    ("anthropic", "claude-opus-5-5", None, None, THINKING_TOKENS, False),
    ("google", "gemini-2.0-flash", "auto", None, 0, True),
    ("google", "gemini-2.5-flash", "auto", {"thinking_budget": 0}, 0, True),
    ("google", "gemini-3.8-flash", "auto", {"thinking_level": "LOW"}, THINKING_TOKENS, False),
    ("mistral", "mistral-small-latest", "auto", None, 0, True),
    ("mistral", "mistral-small-latest", "high", "high", THINKING_TOKENS, True),
]


@pytest.mark.parametrize(("vendor", "name", "effort", "sent", "room", "is_tempered"), THINKING)
def test_a_model_that_thinks_is_asked_for_the_least_of_it_and_given_room(
    httpserver: HTTPServer, prompt, vendor, name, effort, sent, room, is_tempered
) -> None:
    service = VENDORS[vendor](httpserver)
    ask(
        model_of(service, False, model=name, reasoning_effort=effort, max_tokens=800), False, prompt
    )
    body = service.bodies[0]
    options = body.get("generationConfig", body)
    found = {"anthropic": "thinking", "google": "thinkingConfig", "mistral": "reasoning_effort"}[
        vendor
    ]
    assert options.get(found) == sent
    assert options.get("max_tokens", options.get("maxOutputTokens")) == 800 + room
    assert ("temperature" in options) == is_tempered


def test_thinking_that_cannot_be_turned_off_is_left_to_the_model(
    httpserver: HTTPServer, way, prompt
) -> None:
    service = VENDORS["anthropic"](httpserver)
    service.refuses = ("thinking",)
    model = model_of(service, way, model="claude-opus-5-5")
    assert ask(model, way, prompt).calls == 2
    assert service.bodies[-1]["max_tokens"] == 800 + THINKING_TOKENS


def test_google_is_not_told_of_a_deadline_that_it_refuses(
    httpserver: HTTPServer, way, prompt
) -> None:
    google = VENDORS["google"](httpserver)
    ask(model_of(google, way), way, prompt, 5.0)
    assert google.headers[0]["X-Server-Timeout"] == "10"


# --- clients that were given ----------------------------------------------------------------------


def test_a_given_client_is_neither_closed_nor_changed(service, way, prompt) -> None:
    client = service.client(is_async=way, retries=2)
    before = {
        name: value for name, value in vars(client).items() if name not in ("messages", "chat")
    }
    model = model_of(service, way, client=client)
    for said in (Said(), Said(status=500), Said(status=429), Said()):
        service.said = said
        for call in (ask, listen):
            with suppress(ModelError) if said.status >= 400 else nullcontext():
                call(model, way, prompt)
    model.close()
    if way:
        asyncio.run(model.aclose())
    after = {
        name: value for name, value in vars(client).items() if name not in ("messages", "chat")
    }
    assert after == before
    del model
    assert ask(model_of(service, way, client=client), way, prompt).text == TEXT


def test_a_client_works_in_one_event_loop_after_another_and_in_the_callers_own(
    service, prompt
) -> None:
    client = service.client(is_async=True)
    model = model_of(service, True, client=client)

    async def twice() -> None:
        for _ in range(2):
            await model.acomplete(prompt, Deadline.after(30))

    for _ in range(3):
        asyncio.run(twice())
    # Blocking callers use the private loop, or the client itself where that serves both.
    assert ask(model, False, prompt).text == TEXT
    assert len(service.bodies) == 7


def test_a_pair_serves_each_way_with_its_own(httpserver: HTTPServer, prompt) -> None:
    service = VENDORS["anthropic"](httpserver)
    model = model_of(service, False, client=(service.client(), service.client(is_async=True)))
    assert model.can_async
    assert ask(model, False, prompt).text == ask(model, True, prompt).text == TEXT
    assert not model_of(service, False).can_async


def test_a_closed_client_is_an_error_of_the_model(service, prompt) -> None:
    client = service.client()
    model = model_of(service, False, client=client)
    if service.name == "mistral":
        client.__exit__(None, None, None)
    else:
        client.close()
    assert fail(model, False, prompt).reason == "unavailable"
    assert service.bodies == []


def test_a_call_that_somebody_replaced_is_called_as_it_is(service, prompt) -> None:
    client, seen = service.client(), []
    resource, call = {
        "anthropic": lambda: (client.messages, "create"),
        "mistral": lambda: (client.chat, "complete"),
        "google": lambda: (client.models, "generate_content"),
    }[service.name]()
    own = getattr(resource, call)

    def traced(**options: Any) -> Any:
        seen.append(options["model"])
        return own(**options)

    setattr(resource, call, traced)
    assert ask(model_of(service, False, client=client), False, prompt).text == TEXT
    assert seen == [service.model]


FORKING = """
import os, sys
from pytest_httpserver import HTTPServer
from qtmiddleware.config.settings import Settings
from qtmiddleware.protocols import Prompt
from qtmiddleware.providers.llms import make_language_model
from qtmiddleware.types import Deadline
from tests.support.vendor_services import VENDORS

name, url = sys.argv[1:]
service = VENDORS[name].__new__(VENDORS[name])
service.url = url
model = make_language_model(service.client(), Settings(transformation_model=service.model))
prompt = Prompt("rewrite", "1", "Rewrite.", "a question", (), "a question")
model.complete(prompt, Deadline.after(30))
child = os.fork()
for _ in range(2):
    model.complete(prompt, Deadline.after(30))
if child:
    _, status = os.waitpid(child, 0)
    model.complete(prompt, Deadline.after(30))
    sys.exit(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_and_its_parent_both_go_on_asking(service) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKING, service.name, service.url],
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(service.bodies) == 6


def test_of_the_body_of_an_error_little_is_kept(service, prompt) -> None:
    filler = "x" * (4 * MOST_ERROR_BYTES)
    service.said = Said(status=500, raw=json.dumps({"error": {"message": filler}}))
    kept: list[int] = []

    class Watching:
        def __init__(self, error: Any) -> None:
            body = getattr(error, "response", None) or getattr(error, "raw_response", None)
            kept.append(len(body.content))

    from qtmiddleware.providers.llms import vendors

    own = vendors.convert_vendor_error
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            vendors, "convert_vendor_error", lambda error: (Watching(error), own(error))[1]
        )
        assert fail(model_of(service, False), False, prompt).reason == "unavailable"
    assert 0 < kept[0] <= MOST_ERROR_BYTES


# --- privacy --------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [200, 400, 401, 422, 429, 500])
def test_no_key_and_no_text_is_in_what_is_emitted(service, way, status: int) -> None:
    echo = f"{QUERY} {PASSAGE} {ANSWER} {KEY}"
    service.said = Said(
        status=status, message=echo, raw=None if status >= 400 else echo, headers={"x-echo": KEY}
    )
    rows = [{"id": "a", "score": 0.9, "text": PASSAGE}]
    limits = {"llmTimeoutMs": 20_000, "deadlineMs": 50_000}
    chosen = {
        "transformationType": "rewrite",
        "transformationModel": service.model,
        "limits": limits,
    }
    with (
        listening() as emitted,
        qtm.QueryMiddleware(chosen, client=service.client(is_async=way)) as qm,
    ):
        search = qm.wrap(lambda query, top_k=1: rows[:top_k])
        emitted.show(qm, qm.model, search, qm.health())
        found = search.retrieve(QUERY)
        emitted.retrieval(found)
        assert found.degradations
        with pytest.raises(ModelError) as caught:
            search.answer(QUERY)
        emitted.raised(caught.value)
        assert KEY not in repr(caught.value)
