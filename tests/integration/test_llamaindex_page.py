"""What docs/llamaindex.md shows, run as it stands."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from llama_index.core.llms import ChatMessage

from tests.support.langchain_world import QUESTION
from tests.support.llamaindex_world import Replies, make_index

PAGE = (Path(__file__).parents[2] / "docs/llamaindex.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python llamaindex\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
REPLY = {
    "standalone": "What did Jaco eat last year?",
    "rewrite": "Jaco's food last year",
    "hyde": "He eats fish.",
}


def test_every_block_of_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    space: dict[str, Any] = {"index": make_index(), "llm": Replies(reply=json.dumps(REPLY))}
    left = []
    for block in BLOCKS:
        exec(compile(block, "docs/llamaindex.md", "exec"), space)
        left.append(dict(space))
    first, account, theirs, ours, hyde, instead, chat, processed = left
    assert len(first["nodes"]) == len(first["engine"].query(QUESTION).source_nodes) == 4
    assert (account["found"].status, account["found"].degradations) == ("full", ())
    assert "original" in capsys.readouterr().out
    assert theirs["retriever"].retrieve(QUESTION)
    assert len(ours["retriever"].retrieve(QUESTION)) == 4
    for shown in (hyde, instead, processed):
        assert shown["engine"].query(QUESTION).source_nodes
    assert processed["engine"].query(QUESTION).source_nodes[0].node_id == "health"
    memory = chat["memory"]
    memory.put(ChatMessage("What did Jaco eat?"))
    memory.put(ChatMessage("Fish.", role="assistant"))
    assert chat["chat"].chat("And last year?").source_nodes[0].node_id == "food"
