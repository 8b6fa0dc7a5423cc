from __future__ import annotations

import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any

import pytest

import qtmiddleware as qtm
from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import ConfigError, ModelError
from qtmiddleware.kit.evaluation import (
    FREE,
    OWN,
    SYSTEMS,
    Dataset,
    Question,
    chosen,
)
from qtmiddleware.kit.evaluation.bench import (
    CONCURRENCY,
    FunctionSource,
    ask_ahead,
    open_bench,
    open_index,
)
from qtmiddleware.kit.evaluation.caches import CachedModel
from qtmiddleware.kit.evaluation.systems import SEEDS
from qtmiddleware.protocols import Prompt, Reply
from qtmiddleware.testing import ScriptedModel
from qtmiddleware.types import Deadline
from tests.support.bench_world import (
    CountingEmbedder,
    bridges_data,
    write_data,
    write_recording,
)

pytestmark = pytest.mark.thorough

DATA = bridges_data()
SETTINGS = Settings()
RECORDED = ("rewrite", "step_back", "hyde", "sub_queries")


def rephrase(prompt: Prompt) -> dict[str, str]:
    return {"rewrite": f"Say precisely: {prompt.query}"}


@pytest.fixture(autouse=True)
def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "QTM_LLM_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


class Slow(ScriptedModel):
    """Takes *seconds* for a reply; *most* is how many it wrote at a time."""

    def __init__(self, seconds: float = 0.01) -> None:
        super().__init__(
            {"rewrite": "Since when is it open?", "hyde": "It opened in 1850."}, seconds=seconds
        )
        self.at_work = self.most = 0
        self._counting = Lock()

    def _counted(self, by: int) -> None:
        with self._counting:
            self.at_work += by
            self.most = max(self.most, self.at_work)

    async def acomplete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        self._counted(1)
        try:
            return await super().acomplete(prompt, deadline)
        finally:
            self._counted(-1)


def test_a_folder_is_opened_and_its_systems_are_measured(tmp_path: Path, cache: Path) -> None:
    folder = write_data(tmp_path / "set", DATA)
    with open_bench(folder, SETTINGS, cache=cache) as opened:
        found = opened.measure(chosen(["rules"]))
    assert (found.dataset, found.questions, found.passages) == ("set", 6, 12)
    assert found["rules"].means["R@10"] == 1.0
    assert found.fingerprints == DATA.fingerprints
    assert "No language model was called" in found.notes[0]
    assert not opened.has_model


def test_a_second_run_embeds_no_passage_and_asks_nothing(cache: Path) -> None:
    systems = chosen(["rewrite", "auto"])
    model = Slow()
    told: list[str] = []
    found = []
    for _ in range(2):
        with open_bench(DATA, SETTINGS, client=model, cache=cache, progress=lambda *it: told.append(it[0])) as opened:  # fmt: skip
            found.append(opened.measure(systems))
        asked = len(model.prompts)
    assert told == ["embedding passages"]
    assert len(model.prompts) == asked >= 6
    for name in systems:
        assert found[0][name].per_query == found[1][name].per_query
        assert found[0][name].llm_calls == found[1][name].llm_calls


def test_the_time_of_replies_that_were_asked_ahead_is_told(cache: Path) -> None:
    with open_bench(DATA, SETTINGS, client=Slow(0.2), cache=cache) as opened:
        found = opened.measure(chosen(["rewrite"]))
    assert found["rewrite"].added_ms.p50 >= 200
    assert found["off"].added_ms.p50 < 200


def test_the_environment_changes_no_system(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QTM_HYBRID_ENABLED", "true")
    monkeypatch.setenv("QTM_TRANSFORMATION_TYPE", "rewrite")
    model = ScriptedModel({})
    with open_bench(DATA, SETTINGS, client=model, cache=cache) as opened:
        found = opened.measure(chosen(["rules"]) | {"own": {"fusion": {"rrfK": 5}}})
    assert [score.llm_calls for score in found.systems] == [0, 0, 0]
    assert model.prompts == []


def test_so_many_questions_are_asked_at_a_time(cache: Path) -> None:
    model = Slow(0.05)
    with open_bench(DATA, SETTINGS, client=model, cache=cache) as opened:
        opened.measure(chosen(["rewrite", "hyde"]))
    assert model.most == 6 < CONCURRENCY
    assert Counter(prompt.mode for prompt in model.prompts) == {"rewrite": 6, "hyde": 6}


def test_the_model_is_not_asked_ahead_where_a_gate_decides(cache: Path) -> None:
    model = CachedModel(
        ScriptedModel({"rewrite": "Since when is it open?"}), cache / "cache.sqlite"
    )
    told: list[tuple[str, int, int]] = []
    data = bridges_data(history=True)
    ask_ahead(
        model,
        data,
        chosen(["rules", "auto", "rewrite"]),
        progress=lambda *step: told.append(step),
    )
    model.close()
    # The follow-up is asked about whatever was found.
    assert told == [
        ("asking: auto", 1, 1),
        *(("asking: rewrite", done, 7) for done in range(1, 8)),
    ]


def test_a_model_that_is_not_there_is_noticed_at_once(cache: Path) -> None:
    model = ScriptedModel(ModelError("unauthorized"))
    with (
        open_bench(DATA, SETTINGS, client=model, cache=cache) as opened,
        pytest.raises(ModelError, match="replied to none of the first 6 questions") as caught,
    ):
        opened.measure(chosen(["rewrite", "hyde"]))
    assert caught.value.reason == "unauthorized"
    assert len(model.prompts) == 6


def test_a_model_that_fails_now_and_then_is_asked_on(cache: Path) -> None:
    def moody(prompt: Prompt) -> Any:
        return ModelError("unavailable") if "Arlo" in prompt.query else rephrase(prompt)

    with open_bench(DATA, SETTINGS, client=ScriptedModel(moody), cache=cache) as opened:
        found = opened.measure(chosen(["rewrite"]))
    assert (found["rewrite"].degraded, found["rewrite"].llm_calls) == (1, 6)


def test_what_cannot_be_measured_is_not_even_embedded(cache: Path) -> None:
    data = replace(DATA, questions=(replace(DATA.questions[0], text=" "), *DATA.questions[1:]))
    with pytest.raises(ConfigError, match="is blank"):
        open_bench(data, SETTINGS, cache=cache).__enter__()
    assert not cache.exists()


def test_recorded_replies_are_replayed_with_estimated_costs(tmp_path: Path, cache: Path) -> None:
    recording = write_recording(
        tmp_path / "r.jsonl", DATA.only({it.id for it in DATA.questions[:4]}), *RECORDED
    )
    with open_bench(DATA, SETTINGS, recordings=recording, cache=cache) as opened:
        found = opened.measure(chosen(["balanced"]))
    assert (found.questions, opened.has_model) == (4, True)
    recorded, counted = found.notes
    assert recorded.startswith(
        "Recorded replies of a language model (r.jsonl): no model was called"
    )
    assert recorded.endswith("four characters each; costs use the prices of gpt-6-luna.")
    assert counted == "4 of 6 questions were recorded; the others are skipped."
    assert not found.counts_model_time
    assert found["balanced"].cost_usd is not None
    assert found["balanced"].cost_usd > 0
    assert (found["balanced"].llm_calls, found["balanced"].degraded) == (4, 0)


def test_another_question_of_equal_text_is_not_taken_for_the_recorded_one(
    tmp_path: Path, cache: Path
) -> None:
    first = DATA.questions[0]
    twin = Question("twin", first.text)
    data = Dataset(
        DATA.name,
        DATA.passages,
        (first, twin),
        {it.id: DATA.qrels[first.id] for it in (first, twin)},
    )
    recording = write_recording(tmp_path / "r.jsonl", DATA.only({DATA.questions[0].id}), *RECORDED)
    with open_bench(data, SETTINGS, recordings=recording, cache=cache) as opened:
        assert [question.id for question in opened.dataset.questions] == [first.id]


def test_a_recording_tells_which_systems_it_holds_nothing_for(tmp_path: Path, cache: Path) -> None:
    recording = write_recording(tmp_path / "r.jsonl", DATA, "rewrite")
    lacks = {}
    with open_bench(DATA, SETTINGS, recordings=recording, cache=cache) as opened:
        lacks = {
            name: opened.list_missing_fields(it)
            for name, it in chosen(["rules", "rewrite", "multi_query", "balanced"]).items()
        }
    assert lacks == {
        "off": frozenset(),
        "rules": frozenset(),
        "rewrite": frozenset(),
        "multi_query": frozenset({"paraphrases"}),
        "balanced": frozenset(),
    }


def test_questions_are_drawn_by_seed_and_keep_their_order(cache: Path) -> None:
    drawn = []
    for seed in (1, 1, 2):
        with open_bench(DATA, SETTINGS, cache=cache, questions=3, seed=seed) as opened:
            drawn.append([question.id for question in opened.dataset.questions])
            assert opened.notes[-1] == f"3 of 6 questions, drawn with seed {seed}."
    order = [question.id for question in DATA.questions]
    assert drawn[0] == drawn[1] != drawn[2]
    assert all(ids == sorted(ids, key=order.index) for ids in drawn)


def test_a_recording_of_another_set_is_refused(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text('{"_id": "z", "query": "Quite another question?", "rewrite": "x"}\n')
    with pytest.raises(ConfigError, match=r"none of the 6 questions of bridges .*r\.jsonl"):
        open_bench(DATA, SETTINGS, recordings=path, cache=cache).__enter__()


def test_what_cannot_be_recorded_is_refused_before_anything_is_asked(
    tmp_path: Path, cache: Path
) -> None:
    (tmp_path / "file").write_text("x")
    model = ScriptedModel({})
    with pytest.raises(ConfigError, match="cannot be recorded in"):
        open_bench(
            DATA, SETTINGS, client=model, record=tmp_path / "file" / "r.jsonl", cache=cache
        ).__enter__()
    with pytest.raises(ConfigError, match="file line 1: is not JSON"):
        open_bench(DATA, SETTINGS, client=model, record=tmp_path / "file", cache=cache).__enter__()
    with pytest.raises(ConfigError, match="--record needs a language model"):
        open_bench(DATA, SETTINGS, record=tmp_path / "r.jsonl", cache=cache).__enter__()
    with pytest.raises(ConfigError, match="not both"):
        open_bench(
            DATA, SETTINGS, recordings=tmp_path / "a", record=tmp_path / "b", cache=cache
        ).__enter__()
    assert model.prompts == []


def test_an_index_is_built_once_and_only_for_its_own_passages(tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    for data in (
        DATA,
        DATA.only({it.id for it in DATA.questions[:2]}),
        replace(DATA, passages=DATA.passages[:9]),
    ):
        open_index(
            data, tmp_path, CountingEmbedder(), progress=lambda *step: told.append(step)
        ).close()
    assert told == [("embedding passages", 12, 12), ("embedding passages", 9, 9)]
    assert len(list(tmp_path.glob("index-*.sqlite"))) == 2


def test_an_index_whose_build_was_interrupted_is_completed(tmp_path: Path) -> None:
    class Interrupted(CountingEmbedder):
        def embed(self, texts: Any) -> Any:
            if self.texts:
                raise KeyboardInterrupt
            return super().embed(texts)

    passages = tuple(
        replace(DATA.passages[0], id=f"{number}", text=f"text {number}") for number in range(100)
    )
    data = replace(DATA, passages=passages)
    with pytest.raises(KeyboardInterrupt):
        open_index(data, tmp_path, Interrupted())
    with open_index(data, tmp_path, CountingEmbedder()) as store:
        assert store.count() == 100
    assert len(list(tmp_path.glob("index-*.sqlite"))) == 1


def test_two_processes_may_build_one_index_at_once(cache: Path) -> None:
    program = """
import sys
from pathlib import Path
from qtmiddleware.kit.evaluation.bench import open_index
from tests.support.bench_world import CountingEmbedder, bridges_data
with open_index(bridges_data(), Path(sys.argv[1]), CountingEmbedder()) as store:
    print(store.count())
"""
    command = [sys.executable, "-c", program, str(cache)]
    root = Path(__file__).parents[3]
    running = [
        subprocess.Popen(
            command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    ended = [(*process.communicate(timeout=200), process.returncode) for process in running]
    assert ended == [("12\n", "", 0)] * 2


# --- a function of ones own -----------------------------------------------------------------------


def find(query: str, top_k: int = 4) -> list[dict[str, Any]]:
    return [{"id": it.id, "score": 0.5, "text": it.text} for it in DATA.passages][:top_k]


@pytest.mark.parametrize(
    "system", ["off", "rules", "rewrite", "decompose", "all", "balanced", SEEDS]
)
def test_no_question_makes_more_searches_than_were_told(cache: Path, system: str) -> None:
    calls = 0

    def counting(query: str, top_k: int = 4) -> list[dict[str, Any]]:
        nonlocal calls
        calls += 1
        return find(query, 40)[:top_k]

    source = FunctionSource(counting, "app:find")
    model = ScriptedModel({"rewrite": "Who?", "sub_queries": ["Who?", "When?"], "hyde": "It is."})
    data = bridges_data(history=True)
    with open_bench(data, SETTINGS, function=source, client=model, cache=cache) as opened:
        told = opened.count_searches({system: SYSTEMS[system]})
        opened.measure({"off": SYSTEMS["off"], system: SYSTEMS[system]})
        free = opened.count_searches(chosen(FREE))
    assert 0 < calls <= told + len(data.questions)
    assert free == 3 * len(data.questions)


def test_a_wrapped_function_asks_its_own_model_and_takes_no_other(cache: Path) -> None:
    model = ScriptedModel({"rewrite": "Since when is it open?"})
    wrapped = qtm.QueryMiddleware({"transformationType": "rewrite"}, client=model).wrap(find)
    source = FunctionSource(wrapped, "app:search")
    with open_bench(DATA, SETTINGS, function=source, cache=cache) as opened:
        found = opened.measure({**chosen([]), OWN: {}})
    assert found[OWN].llm_calls == 6
    assert found.notes[0] == "app:search uses its own model; its replies are not kept."
    assert (opened.has_model, opened.model_name) == (True, None)
    with pytest.raises(ConfigError, match="already wrapped"):
        open_bench(DATA, SETTINGS, function=source, client=model, cache=cache).__enter__()


def test_wrong_settings_are_no_failure_of_one_question(cache: Path) -> None:
    source = FunctionSource(find, "app:find")
    with (
        open_bench(DATA, SETTINGS, function=source, cache=cache) as opened,
        pytest.raises(ConfigError, match="hybrid"),
    ):
        opened.measure(chosen(["hybrid"]))
