"""A function of the user's own that fails at times or returns other ids, and what measuring it costs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import qtmiddleware as qtm
from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.evaluation import FREE, Dataset, Question, Run, compare, measure
from qtmiddleware.kit.evaluation.bench import FunctionSource, forecast_searches
from qtmiddleware.kit.evaluation.bench.function import open_function
from qtmiddleware.kit.evaluation.systems import SEEDS, SYSTEMS, chosen
from qtmiddleware.testing import ScriptedModel
from qtmiddleware.types import Message
from tests.support.retrieval_world import scripted, search

QUERIES = {
    f"q{number}": text
    for number, text in enumerate(["What does Jaco eat?", "What is the fee?"] * 4)
}
QRELS = {id_: {("food", "fees")[number % 2]: 1} for number, id_ in enumerate(QUERIES)}
DATA = Dataset("own", (), tuple(Question(*one) for one in QUERIES.items()), QRELS)
FREE_SYSTEMS = chosen(FREE)


def find(query: str, top_k: int = 4) -> list[dict[str, Any]]:
    return search(query, top_k)


def failing_on(*numbers: int) -> Callable[..., list[dict[str, Any]]]:
    """A function that fails on its calls of these *numbers*, from 1 on."""
    calls = 0

    def flaky(query: str, top_k: int = 4) -> list[dict[str, Any]]:
        nonlocal calls
        calls += 1
        if calls in numbers:
            raise TimeoutError("no answer\nfrom the index")
        return search(query, top_k)

    return flaky


# --- failures -------------------------------------------------------------------------------------


def test_questions_the_function_fails_on_are_counted_noted_and_left_out_of_every_system() -> None:
    # The second question as it is, and another of the first system's seven that are left.
    found = compare(failing_on(2, 9, 10), QUERIES, QRELS, ["rules"])
    assert found.questions == 6
    assert [(score.name, score.failed, len(score.runs)) for score in found.systems] == [
        ("raw", 1, 6),
        ("rules", 1, 6),
    ]
    (note,) = found.notes
    assert note == (
        "2 of 8 questions failed and are not counted: raw on 'q1' (TimeoutError: no answer from the "
        "index); rules on 'q0' (TimeoutError: no answer from the index)."
    )
    assert [system["failed"] for system in found.to_dict()["systems"]] == [1, 1]
    assert found.data_hash == compare(find, QUERIES, QRELS, ["rules"]).data_hash


def test_a_function_that_fails_on_the_first_five_questions_is_not_asked_the_others() -> None:
    asked: list[str] = []

    def broken(query: str, top_k: int = 4) -> list[dict[str, Any]]:
        asked.append(query)
        raise ConnectionError("refused")

    with pytest.raises(ConnectionError, match="refused") as caught:
        compare(broken, QUERIES, QRELS)
    assert len(asked) == 5
    assert caught.value.__notes__ == ["The system 'raw' failed on 5 questions in a row."]


def test_an_index_that_goes_down_ends_it_after_twenty_questions_in_a_row() -> None:
    asked: list[str] = []

    def dies(query: str, top_k: int = 4) -> list[dict[str, Any]]:
        asked.append(query)
        if len(asked) > 10:
            raise ConnectionError("refused")
        return search(query, top_k)

    queries = {f"{number}": f"What does Jaco eat on day {number}?" for number in range(60)}
    with pytest.raises(ConnectionError, match="refused"):
        compare(dies, queries, {id_: {"food": 1} for id_ in queries})
    assert len(asked) == 30


def test_a_function_that_fails_on_every_question_of_few_is_not_measured() -> None:
    with pytest.raises(TimeoutError):
        compare(failing_on(1, 2), dict([*QUERIES.items()][:2]), dict([*QRELS.items()][:2]))


def test_systems_that_together_fail_on_every_question_leave_nothing_to_measure() -> None:
    def fails_on(*ids: str) -> Callable[[Question], Run]:
        return lambda question: Run((), error=KeyError(question.id) if question.id in ids else None)

    half = [f"q{number}" for number in range(0, 8, 2)], [f"q{number}" for number in range(1, 8, 2)]
    with pytest.raises(KeyError):
        measure({"raw": fails_on(*half[0]), "other": fails_on(*half[1])}, DATA, baseline="raw")


# --- ids ------------------------------------------------------------------------------------------


def test_ids_that_no_judgement_knows_end_it_after_twenty_questions_with_one_of_each_side() -> None:
    asked: list[str] = []

    def other(query: str, top_k: int = 4) -> list[dict[str, Any]]:
        asked.append(query)
        return [{"id": "chunk-1", "score": 1.0, "text": "Jaco eats."}]

    queries = {f"{number}": f"What does Jaco eat on day {number}?" for number in range(60)}
    with pytest.raises(
        ConfigError, match=r"They name 'food', for example; the function returned 'chunk-1'"
    ):
        compare(other, queries, {id_: {"food": 1} for id_ in queries})
    assert len(asked) == 20


def test_few_questions_that_find_nothing_relevant_may_still_be_hard_ones() -> None:
    found = compare(find, {"q": "What does Jaco eat?"}, {"q": {"nowhere": 1}}, ["rules"])
    assert found.notes[-1].startswith("No passage that a system found is judged")


def open_own(fn: Any) -> Any:
    source = FunctionSource(fn, "app:find")
    return open_function(source, DATA, settings=Settings(), model=ScriptedModel(scripted))


def test_wrong_settings_are_no_failure_of_one_question() -> None:
    with open_own(find) as own, pytest.raises(ConfigError, match="hybrid"):
        own.build_system(SYSTEMS["hybrid"])


# --- how much it is -------------------------------------------------------------------------------


def test_searches_are_counted_at_most_and_priced() -> None:
    history = (Message("user", "Who is Jaco?"),)
    data = Dataset(
        "own",
        (),
        (*DATA.questions, Question("later", "And his food?", history)),
        {**QRELS, "later": {"food": 1}},
    )
    settings = Settings()
    source = FunctionSource(find, "app:find")
    for price in (None, 16.0):
        priced = (
            qtm.Config.load({"store": {"readPrice": price}}, environ={}).settings
            if price
            else settings
        )
        with open_function(source, data, settings=priced, model=ScriptedModel(scripted)) as own:
            free = forecast_searches(own, data, FREE_SYSTEMS, has_model=True)
            deep = forecast_searches(own, data, FREE_SYSTEMS, has_model=True, deep=True)
            model = forecast_searches(own, data, chosen(["combined"]), has_model=True)
        assert (free.searches, deep.searches, model.searches) == (27, 54, 9 + 2 * 9)
        assert free.usd == (None if price is None else pytest.approx(27 * 16 / 1e6))


@pytest.mark.parametrize(
    "system", ["raw", "rules", "rewrite", "decompose", "all", "combined", "hyde", SEEDS]
)
def test_no_question_makes_more_searches_than_were_told(system: str) -> None:
    calls = 0

    def counting(query: str, top_k: int = 4) -> list[dict[str, Any]]:
        nonlocal calls
        calls += 1
        return [{"id": str(n), "text": f"Note {n} on dogs"} for n in range(top_k)]

    with open_own(counting) as own:
        told = forecast_searches(own, DATA, {system: SYSTEMS[system]}, has_model=True).searches
        run = own.build_system(SYSTEMS[system])
        for question in DATA.questions:
            run(question)
    assert 0 < calls <= told


def test_the_seeds_search_what_the_model_wrote_instead_of_the_question() -> None:
    asked: list[str] = []

    def listening(query: str, top_k: int = 4) -> list[dict[str, Any]]:
        asked.append(query)
        return search(query, top_k)

    question = "Does Jaco have any health concerns?"
    found = compare(
        listening, {"q": question}, {"q": {"health": 1}}, [SEEDS], client=ScriptedModel(scripted)
    )
    assert [score.name for score in found.systems] == ["raw", SEEDS]
    assert found[SEEDS].llm_calls == 3
    kinds = [variant.kind for variant in found[SEEDS].runs["q"].variants]
    assert kinds == ["original", "rewrite", "sub_query", "sub_query", "step_back"]
    # The question is searched too, as it is the answer if the model fails; it is not fused.
    assert len(asked) == 1 + len(kinds)
