from __future__ import annotations

import string
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.evaluation import Dataset, Question
from qtmiddleware.kit.evaluation.testsets import check_free, generate, write
from qtmiddleware.protocols import Passage
from qtmiddleware.testing import ScriptedModel
from qtmiddleware.types import Message
from tests.support.testset_world import bridges, writer

TEXT = st.text(max_size=60)
IDS = st.text(string.printable + "é#~\u2028\x85", min_size=1, max_size=20).filter(
    lambda it: it == it.strip() and not set("\t\r\n") & set(it)
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
METADATA = st.dictionaries(TEXT.filter(lambda it: it != "history"), JSON, max_size=3)
TURNS = st.lists(st.builds(Message, st.sampled_from(["user", "assistant"]), TEXT), max_size=3).map(
    tuple
)


@st.composite
def datasets(draw: st.DrawFn) -> Dataset:
    passages = [
        Passage(id_, draw(TEXT), draw(METADATA))
        for id_ in draw(st.lists(IDS, min_size=1, max_size=5, unique=True))
    ]
    questions = [
        Question(id_, draw(TEXT), draw(TURNS), draw(METADATA))
        for id_ in draw(st.lists(IDS, max_size=5, unique=True))
    ]
    grades = st.dictionaries(
        st.sampled_from([it.id for it in passages]), st.integers(-2, 3), min_size=1
    )
    return Dataset(
        "synthetic", tuple(passages), tuple(questions), {it.id: draw(grades) for it in questions}
    )


@settings(deadline=None, max_examples=40)
@given(data=datasets())
def test_what_is_written_is_read_back_equal(
    data: Dataset, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("sets") / "synthetic"
    write(data, folder)
    assert Dataset.load(folder) == data


def data(**options: Any) -> Dataset:
    return generate(
        bridges(12), ScriptedModel(writer, name="gpt-6-luna"), count=10, **options
    ).dataset


def test_the_readme_says_what_it_is_of_which_model_and_when_not_to_trust_it(tmp_path: Path) -> None:
    write(data(), tmp_path / "synthetic")
    said = (tmp_path / "synthetic" / "README.md").read_text(encoding="utf-8")
    assert "synthetic" in said.splitlines()[0]
    for expected in (
        "10 questions about 12 passages",
        "`gpt-6-luna`",
        "No user asked them",
        "Do not trust it",
    ):
        assert expected in said


def test_the_readme_of_a_set_with_questions_of_people_counts_the_others(tmp_path: Path) -> None:
    made = data()
    mixed = Dataset(
        made.name,
        made.passages,
        (Question("h1", "Why?"), *made.questions),
        {**made.qrels, "h1": {"Arlo#0": 1}},
    )
    write(mixed, tmp_path / "mixed")
    assert (
        "11 questions about 12 passages. **No user asked them**: 10 of them"
        in (tmp_path / "mixed" / "README.md").read_text()
    )


def test_a_set_that_is_there_is_never_written_over(tmp_path: Path) -> None:
    folder = tmp_path / "synthetic"
    write(data(), folder)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match="never overwritten"):
        write(data(seed=5), folder)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert [it.name for it in tmp_path.iterdir()] == ["synthetic"]


def test_whether_a_folder_is_free_can_be_asked_before_anything_is_paid_for(tmp_path: Path) -> None:
    check_free(tmp_path)
    check_free(tmp_path / "new")
    write(data(), tmp_path / "synthetic")
    for taken in (tmp_path, tmp_path / "synthetic", tmp_path / "synthetic" / "README.md"):
        with pytest.raises(ConfigError, match="already exists"):
            check_free(taken)


def test_a_file_in_the_place_of_the_folder_stays(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("mine")
    for folder in (tmp_path / "a", tmp_path / "a" / "b"):
        with pytest.raises(ConfigError, match="a"):
            write(data(), folder)
    assert (tmp_path / "a").read_text() == "mine"
    assert [it.name for it in tmp_path.iterdir()] == ["a"]


def test_an_empty_folder_and_missing_parents_are_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    write(data(), tmp_path / "empty")
    write(data(), tmp_path / "a" / "b" / "c")
    assert len(Dataset.load(tmp_path / "empty").questions) == 10
    assert len(Dataset.load(tmp_path / "a" / "b" / "c").questions) == 10


@pytest.mark.parametrize(
    ("passages", "questions", "qrels", "said"),
    [
        ([Passage("a", ""), Passage("a", "")], [], {}, "two passages"),
        ([Passage("", "")], [], {}, "two passages of"),
        (
            [Passage("a", "")],
            [Question("q", ""), Question("q", "")],
            {"q": {"a": 1}},
            "two questions",
        ),
        ([Passage("a ", "")], [Question("q", "")], {"q": {"a ": 1}}, "white space"),
        ([Passage("a", "")], [Question("q\t", "")], {"q\t": {"a": 1}}, "white space"),
        ([Passage("a", "", {"when": object()})], [], {}, "metadata of 'a' must be JSON"),
    ],
)
def test_what_the_files_cannot_hold_is_named_and_nothing_is_left_behind(
    tmp_path: Path, passages: list[Passage], questions: list[Question], qrels: Any, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        write(Dataset("x", tuple(passages), tuple(questions), qrels), tmp_path / "x")
    assert [it.name for it in tmp_path.iterdir()] == []


def test_a_disk_that_is_full_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Path, target: Any) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "rename", full)
    with pytest.raises(ConfigError, match="No space left on device"):
        write(data(), tmp_path / "synthetic")
    assert [it.name for it in tmp_path.iterdir()] == []


def test_texts_are_written_as_people_read_them(tmp_path: Path) -> None:
    one = Dataset(
        "x", (Passage("p", "Brücke – 橋\u2028\ud800"),), (Question("q", "橋?"),), {"q": {"p": 1}}
    )
    write(one, tmp_path / "x")
    assert "Brücke – 橋" in (tmp_path / "x" / "corpus.jsonl").read_text(encoding="utf-8")
    assert Dataset.load(tmp_path / "x") == one
