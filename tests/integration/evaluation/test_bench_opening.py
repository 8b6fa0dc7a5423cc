"""What ``qtm bench`` measures is opened, and a model asked ahead, without waste or surprise."""

from __future__ import annotations

from collections import Counter
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any

import pytest

import qtmiddleware as qtm
from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import ConfigError, ModelError
from qtmiddleware.kit.evaluation import Dataset, Question
from qtmiddleware.kit.evaluation.bench import (
    CONCURRENCY,
    Bench,
    FunctionSource,
    ask_ahead,
    open_bench,
    open_index,
)
from qtmiddleware.kit.evaluation.recorded import RecordingModel
from qtmiddleware.kit.evaluation.systems import OWN, chosen
from qtmiddleware.protocols import Prompt, Reply
from qtmiddleware.testing import ScriptedModel
from qtmiddleware.types import Deadline
from tests.support.bench_world import CountingEmbedder, bridges_data, write_recording

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("bare_environment")]

DATA = bridges_data()


@pytest.fixture
def opened(tmp_path: Path) -> Any:
    """Opens a bench whose cache is in the folder ``cache``."""

    def open_(data: Dataset = DATA, **options: Any) -> AbstractContextManager[Bench]:
        return open_bench(data, Settings(), cache=tmp_path / "cache", **options)

    return open_


@pytest.fixture
def recorded(tmp_path: Path) -> Any:
    """Writes a recording of the first *count* questions."""

    def write(count: int) -> Path:
        data = DATA.only({it.id for it in DATA.questions[:count]})
        fields = ("rewrite", "step_back", "hyde", "sub_queries")
        return write_recording(tmp_path / "r.jsonl", data, *fields)

    return write


class Slow(ScriptedModel):
    """Takes *seconds* for a reply; *most* is how many it wrote at a time."""

    def __init__(self, seconds: float = 0.01) -> None:
        replies = {"rewrite": "Since when is it open?", "hyde": "It opened in 1850."}
        super().__init__(replies, seconds=seconds)
        self.at_work = self.most = 0
        self._counting = Lock()

    async def acomplete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        with self._counting:
            self.at_work += 1
            self.most = max(self.most, self.at_work)
        try:
            return await super().acomplete(prompt, deadline)
        finally:
            with self._counting:
                self.at_work -= 1


def test_a_second_run_embeds_no_passage(opened: Any) -> None:
    systems = chosen(["rewrite", "auto"])
    told: list[str] = []
    found = []
    for _ in range(2):
        with opened(client=Slow(), progress=lambda *it: told.append(it[0])) as bench:
            found.append(bench.measure(systems))
    assert told == ["embedding passages"]
    assert (found[0].dataset, found[0].questions, found[0].passages) == ("bridges", 6, 12)
    for name in systems:
        assert found[0][name].per_query == found[1][name].per_query
        assert found[0][name].llm_calls == found[1][name].llm_calls


def test_so_many_questions_are_asked_at_a_time_and_the_time_of_replies_is_told(
    opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The environment changes no system.
    monkeypatch.setenv("QTM_HYBRID_ENABLED", "true")
    monkeypatch.setenv("QTM_TRANSFORMATION_TYPE", "decompose")
    model = Slow(0.2)
    with opened(client=model) as bench:
        found = bench.measure(chosen(["rules", "rewrite", "hyde"]))
    assert [score.llm_calls for score in found.systems] == [0, 0, 6, 6]
    assert model.most == 6 < CONCURRENCY
    assert Counter(prompt.mode for prompt in model.prompts) == {"rewrite": 6, "hyde": 6}
    assert found["rewrite"].added_ms >= 200 > found["off"].added_ms


def test_the_model_is_not_asked_ahead_where_a_gate_decides() -> None:
    told: list[tuple[str, int, int]] = []
    systems = chosen(["rules", "auto", "rewrite"])
    model = RecordingModel(Slow())
    ask_ahead(model, bridges_data(history=True), systems, progress=lambda *it: told.append(it))
    # The follow-up is asked about whatever was found.
    assert told == [("asking: auto", 1, 1), ("asking: rewrite", 7, 7)]


def test_a_model_that_is_not_there_is_noticed_at_once_and_one_that_fails_is_asked_on(
    opened: Any,
) -> None:
    def moody(prompt: Prompt) -> Any:
        if "Arlo" in prompt.query:
            return ModelError("unavailable")
        return {"rewrite": f"Say: {prompt.query}"}

    model = ScriptedModel(ModelError("unauthorized"))
    said = "replied to none of the first 6 questions"
    with opened(client=model) as bench, pytest.raises(ModelError, match=said) as caught:
        bench.measure(chosen(["rewrite", "hyde"]))
    assert (caught.value.reason, len(model.prompts)) == ("unauthorized", 6)
    with opened(client=ScriptedModel(moody, name="moody")) as bench:
        found = bench.measure(chosen(["rewrite"]))
    assert (found["rewrite"].degraded, found["rewrite"].llm_calls) == (1, 6)


def test_recorded_replies_are_replayed_with_estimated_costs(opened: Any, recorded: Any) -> None:
    with opened(recordings=recorded(4)) as bench:
        found = bench.measure(chosen(["balanced"]))
    assert (found.questions, bench.has_model) == (4, True)
    origin, counted = found.notes
    assert origin.startswith("Recorded replies of a language model (r.jsonl): no model was called")
    assert origin.endswith("four characters each; costs use the prices of gpt-6-luna.")
    assert counted == "4 of 6 questions were recorded; the others are skipped."
    assert found["balanced"].cost_usd
    assert (found["balanced"].llm_calls, found["balanced"].degraded) == (4, 0)
    # A question of equal text is not taken for the recorded one.
    first = DATA.questions[0]
    twins = (first, Question("twin", first.text))
    data = Dataset("x", DATA.passages, twins, {it.id: DATA.qrels[first.id] for it in twins})
    with opened(data, recordings=recorded(1)) as bench:
        assert [question.id for question in bench.dataset.questions] == [first.id]


def test_questions_are_drawn_by_seed_and_keep_their_order(opened: Any) -> None:
    drawn = []
    for seed in (1, 1, 2):
        with opened(questions=3, seed=seed) as bench:
            drawn.append([question.id for question in bench.dataset.questions])
    order = [question.id for question in DATA.questions]
    assert drawn[0] == drawn[1] != drawn[2]
    assert all(ids == sorted(ids, key=order.index) for ids in drawn)


def test_what_cannot_be_measured_or_recorded_is_refused_before_anything_is_asked(
    opened: Any, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "r.jsonl").write_text('{"_id": "z", "query": "Another?", "rewrite": "x"}\n')
    model = ScriptedModel({})
    blank = replace(DATA, questions=(replace(DATA.questions[0], text=" "), *DATA.questions[1:]))
    options: list[tuple[dict[str, Any], str]] = [
        ({"data": blank}, "is blank"),
        ({"recordings": tmp_path / "r.jsonl"}, r"none of the 6 questions of bridges .*r\.jsonl"),
        ({"client": model, "record": tmp_path / "file" / "r.jsonl"}, "cannot be recorded in"),
        ({"client": model, "record": tmp_path / "file"}, "file line 1: is not JSON"),
        ({"record": tmp_path / "new.jsonl"}, "--record needs a language model"),
        ({"recordings": tmp_path / "a", "record": tmp_path / "b"}, "not both"),
    ]
    for given, said in options:
        with pytest.raises(ConfigError, match=said):
            opened(**given).__enter__()
    assert model.prompts == []
    assert not list(tmp_path.glob("cache/index-*"))


# --- the index ------------------------------------------------------------------------------------


def test_an_index_is_built_once_and_only_for_its_own_passages(tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    fewer = DATA.only({it.id for it in DATA.questions[:2]})
    for data in (DATA, fewer, replace(DATA, passages=DATA.passages[:9])):
        embedder = CountingEmbedder()
        open_index(data, tmp_path, embedder, progress=lambda *it: told.append(it)).close()
    assert told == [("embedding passages", 12, 12), ("embedding passages", 9, 9)]
    assert len(list(tmp_path.glob("index-*.sqlite"))) == 2


def test_an_index_whose_build_was_interrupted_is_completed(tmp_path: Path) -> None:
    class Interrupted(CountingEmbedder):
        def embed(self, texts: Any) -> Any:
            if self.texts:
                raise KeyboardInterrupt
            return super().embed(texts)

    first = DATA.passages[0]
    passages = tuple(replace(first, id=f"{n}", text=f"text {n}") for n in range(100))
    data = replace(DATA, passages=passages)
    with pytest.raises(KeyboardInterrupt):
        open_index(data, tmp_path, Interrupted())
    with open_index(data, tmp_path, CountingEmbedder()) as store:
        assert store.count() == 100
    assert len(list(tmp_path.glob("index-*.sqlite"))) == 1


# --- a function of ones own -----------------------------------------------------------------------


def find(query: str, top_k: int = 4) -> list[dict[str, Any]]:
    return [{"id": it.id, "score": 0.5, "text": it.text} for it in DATA.passages][:top_k]


def test_a_wrapped_function_asks_its_own_model_and_takes_no_other(opened: Any) -> None:
    model = ScriptedModel({"rewrite": "Since when is it open?"})
    wrapped = qtm.QueryMiddleware({"transformationType": "rewrite"}, client=model).wrap(find)
    source = FunctionSource(wrapped, "app:search")
    with opened(function=source) as bench:
        found = bench.measure({**chosen([]), OWN: {}})
        # Wrong settings are no failure of one question.
        with pytest.raises(ConfigError, match="hybrid"):
            bench.measure(chosen(["hybrid"]))
    assert found[OWN].llm_calls == 6
    assert found.notes[0] == "app:search uses its own model."
    assert (bench.has_model, bench.model_name) == (True, None)
    with pytest.raises(ConfigError, match="already wrapped"):
        opened(function=source, client=model).__enter__()
