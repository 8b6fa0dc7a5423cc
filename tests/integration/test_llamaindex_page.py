"""What docs/frameworks.md shows for LlamaIndex, run as it stands."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from llama_index.core.llms import ChatMessage

from tests.support.langchain_world import QUESTION
from tests.support.llamaindex_world import Replies, make_index

PAGE = (Path(__file__).parents[2] / "docs/frameworks.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python llamaindex\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
REPLY = {
    "standalone": "What did Jaco eat last year?",
    "rewrite": "Jaco's food last year",
    "hyde": "He eats fish.",
}


def test_every_block_of_the_page_runs() -> None:
    first: dict[str, Any] = {"index": make_index(), "llm": Replies(reply=json.dumps(REPLY))}
    exec(compile(BLOCKS[0], "docs/frameworks.md", "exec"), first)
    assert len(first["nodes"]) == len(first["engine"].query(QUESTION).source_nodes) == 4
    first["memory"].put(ChatMessage("What did Jaco eat?"))
    first["memory"].put(ChatMessage("Fish.", role="assistant"))
    nodes = first["chat"].chat("And last year?").source_nodes
    assert "food" in [node.node_id for node in nodes][:2], nodes
    processed: dict[str, Any] = {"index": first["index"], "llm": first["llm"]}
    exec(compile(BLOCKS[1], "docs/frameworks.md", "exec"), processed)
    assert processed["engine"].query(QUESTION).source_nodes[0].node_id == "health"
