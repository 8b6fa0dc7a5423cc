"""What a report says of the questions a system hurt."""

from __future__ import annotations

from comparisons import comparison, run, score

from qtmiddleware.evaluation import Dataset, Question
from qtmiddleware.ports import Passage
from qtmiddleware.reporting.hurt import ID_LENGTH, Hurting

FOLDER = "handbook/a-folder-with-a-name-that-is-long/and-another-one-below-it.md"


def test_chunks_of_one_document_are_told_apart_however_long_its_name_is() -> None:
    ids = [f"{FOLDER}#{number}" for number in (12, 13)]
    ours = score("ours", {"q": -0.2}, runs={"q": run("q", ids=ids[:1])})
    found = comparison(ours)
    passages = tuple(Passage(id_, f"words of {id_[-2:]}") for id_ in ids)
    data = Dataset("a set", passages, (Question("q", "what?"),), {"q": dict.fromkeys(ids, 1)})
    (hurt,) = Hurting(found, data).of(ours)
    assert [one.text for one in hurt.missed] == ["words of 13"]
    shown = [one.id for one in (*hurt.found, *hurt.missed)]
    assert [id_[-3:] for id_ in shown] == ["#12", "#13"]
    assert all(len(id_) == ID_LENGTH for id_ in shown)
