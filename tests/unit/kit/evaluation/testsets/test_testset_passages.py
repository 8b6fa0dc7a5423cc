from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from qtmiddleware.config import Config
from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.evaluation.testsets import generate, passages_of
from qtmiddleware.testing import ScriptedModel
from tests.support.ingest_world import SENTENCES, World
from tests.support.shared_data import SHARED, needs_shared_data
from tests.support.testset_world import ASKED, shown

SMALL = Config.load({"chunkSize": 200, "chunkOverlap": 40}).settings


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    for name, text in SENTENCES.items():
        made.write(f"{name}.txt", text)
    made.write("notes/read me.md", f"# A heading\n\n{SENTENCES['alpha']}")
    return made


def as_stored(
    paths: list[Path], settings: Settings = SMALL
) -> dict[str, tuple[str, dict[str, Any]]]:
    return {
        passage.id: (passage.text, dict(passage.metadata))
        for passage in passages_of(paths, settings)
    }


def test_passages_are_those_an_ingest_of_the_same_documents_stores(world: World) -> None:
    world.ingest()
    assert as_stored([world.docs]) == {id_: row[:2] for id_, row in world.passages().items()}


def test_several_paths_give_what_ingesting_one_after_the_other_gives(world: World) -> None:
    # Two files of one name, below different data paths.
    paths = [
        world.docs / "alpha.txt",
        world.docs / "notes",
        world.write("more/alpha.txt", SENTENCES["beta"]),
    ]
    for path in paths:
        world.ingest(path)
    assert as_stored(paths) == {id_: row[:2] for id_, row in world.passages().items()}


def test_a_document_in_two_of_the_paths_is_there_once(world: World) -> None:
    assert (
        as_stored([world.docs / "alpha.txt", world.docs]).keys()
        == as_stored([world.docs / "alpha.txt", world.docs]).keys()
    )
    texts = [text for text, _ in as_stored([world.docs, world.docs / "alpha.txt"]).values()]
    assert sorted(texts) == sorted(text for text, _ in as_stored([world.docs]).values())


def test_nothing_is_written(world: World) -> None:
    before = sorted(world.folder.rglob("*"))
    passages_of([world.docs], SMALL)
    assert sorted(world.folder.rglob("*")) == before


def test_a_document_that_cannot_be_read_is_left_out_and_named(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    whole = as_stored([world.docs])
    world.write("broken.txt", b"\xff\x00\x01")
    with caplog.at_level(logging.WARNING, "qtmiddleware.testsets"):
        assert as_stored([world.docs]) == whole
    assert "broken.txt was not read: binary" in caplog.text


def test_without_any_document_that_can_be_read_it_says_why(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no documents"):
        passages_of([tmp_path], SMALL)
    (tmp_path / "a.txt").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"no passages.*a\.txt was not read: empty"):
        passages_of([tmp_path], SMALL)
    with pytest.raises(ConfigError, match="no passages"):
        passages_of([], SMALL)


@needs_shared_data
def test_real_documents_give_questions_whose_twin_passages_are_relevant_too() -> None:
    """The same document lies there as PDF and as text; what is asked of one is answered by the other."""

    def plausible(prompt: Any) -> Any:
        sentences = [
            it.strip()
            for it in shown(prompt)["passage"].replace("\n", " ").split(". ")
            if len(it.split()) > 9
        ]
        chosen = max(sentences, key=len, default="")
        if prompt.mode != ASKED:
            return json.dumps({"quote": chosen, "answers": "yes" if chosen else "no"})
        words = sorted(set(chosen.split()), key=lambda word: (-len(word), word))[:2]
        return json.dumps(
            {"question": f"How do {' and '.join(words)} hang together?", "answer": chosen}
        )

    paths = [SHARED / "docs" / f"Understanding_Climate_Change.{kind}" for kind in ("pdf", "txt")]
    data = generate(passages_of(paths, Settings()), ScriptedModel(plausible), count=40).dataset
    assert len(data.questions) == 40
    sources = [{passage.partition("#")[0] for passage in grades} for grades in data.qrels.values()]
    assert sum(len(found) == 2 for found in sources) >= 0.9 * len(sources)
