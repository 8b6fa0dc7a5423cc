"""What docs/agents.md shows for agent frameworks, run as it stands against the real ones, with scripted models."""

from __future__ import annotations

import asyncio
import gc
import json
import re
from pathlib import Path
from typing import Any

import pytest

import qtmiddleware as qtm

PAGE = (Path(__file__).parents[2] / "docs/agents.md").read_text(encoding="utf-8")
(RECIPE,) = re.findall(
    r"^```python openai_agents\n(.*?)^```",
    PAGE,
    re.DOTALL | re.MULTILINE,
)
TOOLS = dict(re.findall(r"^\| ([\w' ]+) \| `(.*tool\..*)` \|$", PAGE, re.MULTILINE))
"""What the page's table says of each framework."""
QUESTION = "When is a doctor's note due?"
TEXTS = {
    "leave": "Staff have 28 days of leave. Unused days expire in March.",
    "sick": "Report sickness by nine. A doctor's note is due after three days.",
}
ASKED = {"query": QUESTION, "top_k": 1, "effort": None, "max_tokens": 500}


@qtm.middleware
def search(query: str, top_k: int = 4) -> list[dict[str, Any]]:
    return [{"id": id_, "text": text} for id_, text in TEXTS.items()][:top_k]


pytestmark = pytest.mark.usefixtures("closed_loop")


def make(framework: str, **given: Any) -> tuple[Any, Any]:
    """The tool, and what the page makes of it for *framework*."""
    tool = search.as_tool(collection="the staff handbook")
    return tool, eval(TOOLS[framework], {"tool": tool, **given})


def first_id(written: str) -> str:
    return str(json.loads(written)["results"][0]["id"])


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

    space = {"search": search, "model": Scripted()}
    exec(compile(RECIPE, "docs/agents.md", "exec"), space)
    assert space["answer"] == "sick"


@pytest.mark.thorough
# The framework leaves a generator to a loop that it has closed.
@pytest.mark.filterwarnings("ignore:asynchronous generator:ResourceWarning")
def test_pydantic_ai_takes_the_tool() -> None:
    from pydantic_ai import Agent
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
    from pydantic_ai.models.function import FunctionModel

    def answer(messages: list[Any], info: Any) -> ModelResponse:
        (tool,) = info.function_tools
        if len(messages) == 1:
            assert tool.parameters_json_schema["properties"]["effort"]["description"]
            return ModelResponse([ToolCallPart(tool.name, ASKED)])
        return ModelResponse([TextPart(first_id(messages[-1].parts[0].content))])

    _, agent = make("Pydantic AI", Agent=Agent, model=FunctionModel(answer))
    assert agent.run_sync(QUESTION).output == "sick"
    gc.collect()


def test_langchain_takes_the_tool() -> None:
    from langchain_core.tools import StructuredTool

    ours, tool = make("LangChain", StructuredTool=StructuredTool)
    assert first_id(tool.invoke({"query": QUESTION})) == "sick"
    assert (tool.name, tool.description) == ("search", ours.description)
    assert set(tool.args) == set(ours.input_schema["properties"])
    call = {"name": "search", "args": ASKED, "id": "1", "type": "tool_call"}
    assert first_id(asyncio.run(tool.ainvoke(call)).content) == "sick"


@pytest.mark.thorough
def test_llamaindex_takes_the_tool() -> None:
    from llama_index.core.tools import FunctionTool

    ours, tool = make("LlamaIndex", FunctionTool=FunctionTool)
    assert first_id(str(tool.call(query=QUESTION))) == "sick"
    assert tool.metadata.name == "search"
    assert ours.description in tool.metadata.description
    properties = tool.metadata.get_parameters_dict()["properties"]
    assert set(properties) == set(ours.input_schema["properties"])
    assert first_id(str(asyncio.run(tool.acall(**ASKED)))) == "sick"
