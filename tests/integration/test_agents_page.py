"""What docs/agents.md shows for agent frameworks, run as it stands against the real ones, with scripted models."""

from __future__ import annotations

import asyncio
import gc
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

import qtmiddleware as qtm

PAGE = (Path(__file__).parents[2] / "docs/agents.md").read_text(encoding="utf-8")
RECIPES = dict(re.findall(r"^```python (\w+)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE))
QUESTION = "When is a doctor's note due?"
TEXTS = {
    "leave": "Staff have 28 days of leave. Unused days expire in March.",
    "sick": "Report sickness by nine. A doctor's note is due after three days.",
}
ASKED = {"query": QUESTION, "top_k": 1, "effort": None, "max_tokens": 500}


@qtm.middleware
def search(query: str, top_k: int = 4) -> list[dict[str, Any]]:
    return [{"id": id_, "text": text} for id_, text in TEXTS.items()][:top_k]


@pytest.fixture(autouse=True)
def _closed_loop() -> Iterator[None]:
    """The blocking calls of the frameworks run on the thread's loop, and leave it open."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    asyncio.set_event_loop(None)
    loop.close()
    gc.collect()


def run(name: str, **given: Any) -> dict[str, Any]:
    """The names that the recipe *name* leaves behind."""
    space = {"search": search, **given}
    exec(compile(RECIPES[name], f"docs/agents.md {name}", "exec"), space)
    return space


def first_id(written: str) -> str:
    return str(json.loads(written)["results"][0]["id"])


def test_every_recipe_of_the_page_is_run() -> None:
    assert set(RECIPES) == {"openai_agents", "pydantic_ai", "langchain", "llamaindex", "anthropic"}


@pytest.mark.thorough
def test_openais_agents_sdk_takes_the_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    import agents
    from agents.items import ModelResponse
    from agents.usage import Usage
    from openai.types.responses import (
        ResponseFunctionToolCall,
        ResponseOutputMessage,
        ResponseOutputText,
    )

    monkeypatch.setenv("OPENAI_AGENTS_DISABLE_TRACING", "1")
    agents.set_tracing_disabled(True)

    class Scripted(agents.Model):  # type: ignore[misc]
        async def get_response(self, *_: Any, **asked: Any) -> Any:
            items = asked["input"]
            if isinstance(items, str) or len(items) == 1:
                (tool,) = asked["tools"]
                assert tool.params_json_schema["properties"]["top_k"]["description"]
                call = ResponseFunctionToolCall(
                    arguments=json.dumps(ASKED), call_id="1", name=tool.name, type="function_call"
                )
                return ModelResponse(output=[call], usage=Usage(), response_id=None)
            text = ResponseOutputText(
                text=first_id(items[-1]["output"]), type="output_text", annotations=[]
            )
            message = ResponseOutputMessage(
                id="1", content=[text], role="assistant", status="completed", type="message"
            )
            return ModelResponse(output=[message], usage=Usage(), response_id=None)

        def stream_response(self, *args: Any, **kwargs: Any) -> Any:
            raise NotImplementedError

    assert run("openai_agents", model=Scripted())["answer"] == "sick"


@pytest.mark.thorough
# The framework leaves a generator to a loop that it has closed.
@pytest.mark.filterwarnings("ignore:asynchronous generator:ResourceWarning")
def test_pydantic_ai_takes_the_tool() -> None:
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
    from pydantic_ai.models.function import FunctionModel

    def answer(messages: list[Any], info: Any) -> ModelResponse:
        (tool,) = info.function_tools
        if len(messages) == 1:
            assert tool.parameters_json_schema["properties"]["effort"]["description"]
            return ModelResponse([ToolCallPart(tool.name, ASKED)])
        return ModelResponse([TextPart(first_id(messages[-1].parts[0].content))])

    assert run("pydantic_ai", model=FunctionModel(answer))["answer"] == "sick"
    gc.collect()


def test_langchain_takes_the_tool() -> None:
    left = run("langchain")
    assert first_id(left["found"]) == "sick"
    tool = left["langchain_tool"]
    assert (tool.name, tool.description) == ("search", left["tool"].description)
    assert set(tool.args) == set(left["tool"].input_schema["properties"])
    call = {"name": "search", "args": ASKED, "id": "1", "type": "tool_call"}
    assert first_id(asyncio.run(tool.ainvoke(call)).content) == "sick"


@pytest.mark.thorough
def test_llamaindex_takes_the_tool() -> None:
    left = run("llamaindex")
    assert first_id(str(left["found"])) == "sick"
    tool = left["llama_tool"]
    assert tool.metadata.name == "search"
    assert left["tool"].description in tool.metadata.description
    properties = tool.metadata.get_parameters_dict()["properties"]
    assert set(properties) == set(left["tool"].input_schema["properties"])
    assert first_id(str(asyncio.run(tool.acall(**ASKED)))) == "sick"


@pytest.mark.thorough
def test_anthropics_tool_use_takes_the_tool(
    httpserver: HTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(request: Request) -> Response:
        asked = request.get_json()
        said = asked["messages"][-1]["content"]
        content: list[dict[str, Any]]
        if isinstance(said, str):
            (tool,) = asked["tools"]
            assert tool["input_schema"]["properties"]["query"]["description"]
            content = [{"type": "tool_use", "id": "toolu_1", "name": tool["name"], "input": ASKED}]
        else:
            content = [{"type": "text", "text": first_id(said[-1]["content"])}]
        reply = {
            "id": "msg_1", "type": "message", "role": "assistant", "model": asked["model"], "content": content,
            "stop_reason": "tool_use" if content[0]["type"] == "tool_use" else "end_turn", "stop_sequence": None,
            "usage": {"input_tokens": 1, "output_tokens": 1},
        }  # fmt: skip
        return Response(json.dumps(reply), content_type="application/json")

    httpserver.expect_request("/v1/messages").respond_with_handler(answer)
    monkeypatch.setenv("ANTHROPIC_BASE_URL", httpserver.url_for(""))
    monkeypatch.setenv("ANTHROPIC_API_KEY", "a-key-of-nobody")
    assert run("anthropic", model="claude-test")["answer"] == "sick"
