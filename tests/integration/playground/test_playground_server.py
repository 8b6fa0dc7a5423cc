"""``qtm playground`` as its users run it: what it prints, whom it answers, and how it ends."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.command_line import Ended, built, folder, qtm  # noqa: F401
from tests.support.playground_world import APP, QUESTION, Served, serve
from tests.support.waiting import wait_until

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A playground over a good function with a model."""
    with serve(tmp_path_factory.mktemp("playground"), "-f", f"{APP}:search") as it:
        yield it


def list_tiers(page: str) -> list[str]:
    return re.findall(r'<article [^>]*data-tier="(\w+)"', page)


def test_nothing_that_is_asked_is_written_anywhere_and_nobody_else_can_ask(served: Served) -> None:
    served.get("a question about a secret", tier="no tier")
    httpx.get(served.url + "../secret")
    assert "secret" not in served.errors.read_text()
    assert list(served.errors.parent.iterdir()) == [served.errors]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", served.port), timeout=5)


def test_an_interrupt_ends_it_as_it_ends_every_command_though_a_function_hangs(
    tmp_path: Path,
) -> None:
    with serve(tmp_path, "-f", f"{APP}:hanging") as served:
        with socket.create_connection(("127.0.0.1", served.port)) as connection:
            connection.sendall(b"GET /?q=why HTTP/1.1\r\nHost: localhost\r\n\r\n")
            wait_until(lambda: "the function hangs" in served.errors.read_text())
            assert served.end() == 130
        said = served.errors.read_text()
    assert said.rstrip().endswith("qtm: interrupted")
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ("", 1, "qtm ingest"),
        ("-f nowhere:search", 2, "the module 'nowhere' was not found"),
        ("--questions nowhere.json", 2, "nowhere.json"),
        ("--port 70000", 2, "65535"),
        ("--set topK=0", 2, "topK"),
    ],
)
def test_what_cannot_be_used_is_refused(
    qtm: Callable[..., Ended],  # noqa: F811
    arguments: str,
    code: int,
    said: str,
) -> None:
    ended = qtm("playground", *arguments.split())
    assert (ended.code, ended.out) == (code, "")
    assert said in ended.err
    assert "Traceback" not in ended.err


def test_it_serves_the_index_of_the_folder_with_examples_of_ones_own(folder: Path) -> None:  # noqa: F811
    asked = [{"question": "What <b>is</b> it?", "ideal_answer": "It."}]
    (folder / "asked.json").write_text(json.dumps(asked))
    with serve(folder, "--questions", "asked.json", "--set", "topK=2") as served:
        assert "What &lt;b&gt;is&lt;/b&gt; it?" in served.get().text
        page = served.get(QUESTION).text
        assert served.end() == 130
    assert list_tiers(page) == ["off", "rules"]
    assert '"topK": 2' in page.replace("&#34;", '"')


def test_a_table_with_the_ids_of_the_answers_says_who_finds_them(folder: Path) -> None:  # noqa: F811
    (folder / "asked.csv").write_text(f"question,id\n{QUESTION},nowhere.md\n", encoding="utf-8")
    with serve(folder, "--questions", "asked.csv") as served:
        assert "Nobody judged which passage answers." not in served.get(QUESTION).text
        other = served.get("Which question did nobody judge?").text
    assert "Nobody judged which passage answers." in other


def test_the_demo_replays_its_replies_and_says_where_there_is_none(tmp_path: Path) -> None:
    def read(page: str) -> list[str]:
        # Times and the key of the style differ.
        parts = r'<p class="why">.*?</p>|<bdi class="title">.*?</bdi>|<ul class="texts">.*?</ul>'
        return re.findall(parts, page, re.DOTALL)

    with serve(tmp_path, "--playground", "--recorded", command="demo") as served:
        start, known = served.get().text, served.get("flat again").text
        unknown = served.get("a question that nobody has asked").text
        assert httpx.get(served.url + "elsewhere/").status_code == 404
        # The same link gives the same answer after other questions.
        assert read(served.get("flat again").text) == read(known)
    assert len(read(known)) > 15
    assert "E-1101 after a frosty night" in start
    assert list_tiers(known) == ["off", "rules", "balanced"]
    assert "Replaying recorded replies of a large language model" in known
    assert "no reply is recorded" not in known
    assert unknown.count("no reply is recorded") == 1
