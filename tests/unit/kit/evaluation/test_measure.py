from __future__ import annotations

import json
import sys
from math import log2

import pytest

from qtmiddleware.errors import ConfigError, MissingExtra
from qtmiddleware.kit.evaluation import Dataset, Question, Run, measure
from qtmiddleware.protocols import Passage

PASSAGES = tuple(Passage(id_, id_) for id_ in "abcd")
DATA = Dataset(
    "four", PASSAGES, tuple(Question(id_, id_) for id_ in "abcd"), {id_: {id_: 1} for id_ in "abcd"}
)


def second(question: Question) -> Run:
    """The right passage in the second place."""
    return Run(("x", question.id))


def mixed(question: Question) -> Run:
    """Better for a, as good for b, worse for c and d."""
    ids = {"a": ("a", "x"), "b": ("x", "b"), "c": ("x", "y", "c"), "d": ()}[question.id]
    seconds = {"a": 0.1, "b": 0.2, "c": 0.3, "d": 0.4}[question.id]
    return Run(ids, seconds_added=seconds, llm_calls=2, degraded=question.id == "d")


def test_systems_are_measured_against_the_baseline() -> None:
    found = measure({"raw": second, "ours": mixed}, DATA, baseline="raw")
    ours = found["ours"]
    assert (ours.hurt_rate, ours.helped_rate) == (0.5, 0.25)
    assert ours.means["nDCG@10"] == pytest.approx((1 + 1 / log2(3) + 1 / log2(4) + 0) / 4)
    assert ours.added_ms.p50 == pytest.approx(200.0)
    assert (ours.llm_calls, ours.degraded) == (8, 1)
    assert ours.runs["c"].ids == ("x", "y", "c")
    assert ours.per_query.values["MRR@10"] == pytest.approx(
        {"a": 1.0, "b": 0.5, "c": 1 / 3, "d": 0.0}
    )


def test_the_baseline_neither_hurts_nor_adds() -> None:
    raw = measure({"raw": second}, DATA, baseline="raw")["raw"]
    assert (raw.hurt_rate, raw.helped_rate, raw.added_ms.p50, raw.llm_calls) == (0.0, 0.0, 0.0, 0)


def test_every_step_is_told_in_order() -> None:
    told: list[tuple[str, int, int]] = []
    measure(
        {"raw": second, "ours": mixed},
        DATA,
        baseline="raw",
        progress=lambda *step: told.append(step),
    )
    assert told == [(name, done, 4) for name in ("raw", "ours") for done in (1, 2, 3, 4)]


def test_the_outcome_is_plain_data() -> None:
    data = measure({"raw": second, "ours": mixed}, DATA, baseline="raw").to_dict()
    assert json.loads(json.dumps(data)) == data
    assert (data["dataset"], data["passages"], data["questions"], data["baseline"]) == (
        "four",
        4,
        4,
        "raw",
    )
    assert [system["name"] for system in data["systems"]] == ["raw", "ours"]
    assert data["systems"][1]["hurtRate"] == 0.5


def test_an_unknown_baseline_is_refused_before_anything_runs() -> None:
    with pytest.raises(
        ConfigError, match="baseline must be the name of a system, not 'nobody'"
    ) as caught:
        measure({"raw": lambda question: pytest.fail("ran")}, DATA, baseline="nobody")
    assert caught.value.allowed == "raw"


def test_a_collection_without_questions_is_refused() -> None:
    with pytest.raises(ConfigError, match="no judged questions"):
        measure({"raw": second}, Dataset("none", PASSAGES, (), {}), baseline="raw")


def test_a_system_that_fails_has_no_score() -> None:
    def broken(question: Question) -> Run:
        raise TimeoutError("theirs")

    with pytest.raises(TimeoutError, match="theirs"):
        measure({"raw": second, "broken": broken}, DATA, baseline="raw")


def test_a_failure_says_which_system_and_question_it_came_of() -> None:
    def flaky(question: Question) -> Run:
        if question.id == "c":
            raise ConnectionError("theirs")
        return second(question)

    with pytest.raises(ConnectionError, match="theirs") as caught:
        measure({"raw": second, "flaky": flaky}, DATA, baseline="raw")
    assert caught.value.__notes__ == ["The system 'flaky' raised this on the question 'c'."]


@pytest.mark.parametrize("grade", [0, -1])
def test_judgements_under_which_nothing_is_relevant_are_refused_before_anything_runs(
    grade: int,
) -> None:
    data = Dataset("none", PASSAGES, DATA.questions, {id_: {id_: grade} for id_ in "abcd"})
    with pytest.raises(
        ConfigError, match="the data set none must have a passage with a grade above 0"
    ):
        measure({"raw": lambda question: pytest.fail("ran")}, data, baseline="raw")


def test_what_no_figure_says_is_noted() -> None:
    data = Dataset("some", PASSAGES, DATA.questions, {**DATA.qrels, "a": {"a": 0}})
    assert measure({"raw": second}, DATA, baseline="raw").notes == ()
    assert measure({"raw": second}, data, baseline="raw", notes=["mine"]).notes == (
        "mine",
        "1 of 4 questions have no relevant passage in their judgements; they count as 0 for every system.",
    )
    (said,) = measure({"raw": lambda question: Run(("chunk 7",))}, DATA, baseline="raw").notes
    assert said.startswith("No passage that a system found is judged")
    (said,) = measure({"raw": second, "ours": mixed}, DATA, baseline="raw").notes
    assert said.startswith("ours: 1 of 4 answers are degraded")


def test_a_system_whose_model_never_replied_is_not_told_to_cost_nothing() -> None:
    def left(question: Question) -> Run:
        return Run((question.id,), degraded=True)

    ours = measure({"raw": second, "ours": left}, DATA, baseline="raw")["ours"]
    assert ours.cost_usd is None


def test_a_name_that_was_not_compared_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        measure({"raw": second}, DATA, baseline="raw")["other"]


@pytest.mark.parametrize("package", ["ir_measures", "scipy"])
def test_a_missing_package_is_told_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=r"qtmiddleware\[eval\]"):
        measure({"raw": lambda question: pytest.fail("ran")}, DATA, baseline="raw")


def test_of_several_systems_the_probabilities_are_corrected_for_their_number() -> None:
    def first(question: Question) -> Run:
        return Run((question.id,))

    found = measure({"raw": second, "first": first, "mixed": mixed}, DATA, baseline="raw")
    assert found["first"].difference.p_holm == pytest.approx(
        min(1.0, 2 * found["first"].difference.p)
    )
    assert found["raw"].difference.p_holm == 1.0
