"""The laws, one function each: it yields what it saw that must not be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from tests.laws.cases import Case
from tests.laws.shapes import SHAPES, Row
from tests.laws.world import (
    QUERY,
    REPLIES,
    Played,
    make_arguments,
    play,
    turn,
)

UNUSED_MODELS: Final = ("none", "late", "garbage", "refusing", "chatting", "failing")
"""Models of which nothing can be used."""


@dataclass
class Plays:
    """A case and all that was asked in it: ``retrieve``, the call itself, and ``retrieve`` the other way."""

    retrieved: Played
    called: Played
    turned: Played
    by_rules: Played | None = None

    @property
    def case(self) -> Case:
        return self.retrieved.case

    @property
    def each(self) -> tuple[Played, ...]:
        return self.retrieved, self.called, self.turned

    @property
    def answered(self) -> Iterator[Played]:
        """Those of which there is something to read, on both sides."""
        return (it for it in self.each if it.plain.error is None and it.got.error is None)


Law = Callable[[Plays], Iterator[Any]]
LAWS: dict[str, Law] = {}
"""Every law, by what it says."""


def law(check: Law) -> Law:
    LAWS[(check.__doc__ or "").rstrip(".")] = check
    return check


@law
def is_answered(plays: Plays) -> Iterator[Any]:
    """Whatever the plain call answers is answered."""
    for played in plays.each:
        if played.plain.error is None and played.got.error is not None:
            yield repr(played.got.error)


@law
def is_own_error(plays: Plays) -> Iterator[Any]:
    """The function's own exception arrives, the very object."""
    for played in plays.each:
        if played.plain.error is not None and played.got.error is not played.plain.error:
            yield f"{played.got.error!r} for {played.plain.error!r}"


@law
def is_same_type(plays: Plays) -> Iterator[Any]:
    """The response has the plain type, and the same beside its passages."""
    shape = SHAPES[plays.case.shape]
    for played in plays.answered:
        got, plain = played.got.response, played.plain.response
        if type(got) is not type(plain):
            yield type(got)
        elif repr(shape.frame(got)) != repr(shape.frame(plain)):
            yield shape.frame(got)


@law
def is_as_many(plays: Plays) -> Iterator[Any]:
    """There are as many passages as plainly, up to the number asked for."""
    for played in plays.answered:
        got, plain = len(played.read(played.got)), len(played.read(played.plain))
        least = plain if played.world.number is None else min(plain, played.world.number)
        most = None if played.world.number is None else max(plain, played.world.number)
        if got < least or (most is not None and got > most):
            yield f"{got} for {plain}"


@law
def is_kept(plays: Plays) -> Iterator[Any]:
    """A passage of a short plain result is never lost."""
    for played in plays.answered:
        plain, number = played.read(played.plain), played.world.number
        lost = {row.name for row in plain} - {row.name for row in played.read(played.got)}
        if lost and (number is None or len(plain) < number):
            yield lost


@law
def is_single(plays: Plays) -> Iterator[Any]:
    """No passage comes more often than plainly."""
    for played in plays.answered:
        before = Counter(row.name for row in played.read(played.plain))
        counts = Counter(row.name for row in played.read(played.got))
        if doubled := [name for name, count in counts.items() if count > max(1, before[name])]:
            yield doubled


@law
def is_found(plays: Plays) -> Iterator[Any]:
    """Every passage is one that a search found, unchanged; what the question found keeps its score."""
    shape = SHAPES[plays.case.shape]
    for played in plays.answered:
        found: dict[bool, set[Row]] = {True: set(), False: set()}
        for text, _, served in played.world.served:
            found[text == QUERY].update(shape.read(served))
        own = found[True]
        names = {row.name for row in own}
        for row in played.read(played.got):
            if row in own:
                continue
            is_foreign = row.name not in names and row._replace(score=None) in {
                it._replace(score=None) for it in found[False]
            }
            # What only a variant found has no score for the question: it carries one of the end of
            # the question's own list, or its own if that list is empty.
            is_scored = plays.case.has_lists_in_turn or row.score in {it.score for it in own}
            if not is_foreign or (own and not is_scored):
                yield row


@law
def is_thrifty(plays: Plays) -> Iterator[Any]:
    """No text is searched twice, but as the caller asks if that failed or found too few, and alone if that failed beside others."""
    case = plays.case
    is_failing = case.search in (
        *("rejects many", "breaks for many", "fails", "one fails", "variants fail"),
    )
    is_short = case.supply in ("few", "none") or case.search == "gives less of many"
    for played in plays.each:
        most = Counter({QUERY: int(is_short and played.world.number is not None)})
        for text, count in Counter(call.text for call in played.world.calls).items():
            fails_alone = case.search == "fails" and text == QUERY
            if count > 1 + max(is_failing + fails_alone, most[text]):
                yield text, count


@law
def is_untouched(plays: Plays) -> Iterator[Any]:
    """Neither the arguments nor what the function returned is changed."""
    for played in plays.each:
        args, kwargs = make_arguments(played.case)
        if repr(played.arguments) != repr((args, kwargs)):
            yield played.arguments
        for _, response, served in played.world.served:
            if repr(response) != repr(served):
                yield response


@law
def is_passed_on(plays: Plays) -> Iterator[Any]:
    """Every search gets the caller's other arguments."""
    _, kwargs = make_arguments(plays.case)
    for played in plays.each:
        for call in played.world.calls:
            if call.filters != kwargs["filters"]:
                yield call


@law
def is_own_query(plays: Plays) -> Iterator[Any]:
    """The original query is the user's own."""
    for played in plays.answered:
        retrieval = played.got.retrieval
        if retrieval and retrieval.original_query != QUERY:
            yield retrieval.original_query


@law
def is_told(plays: Plays) -> Iterator[Any]:
    """The status is full if nothing failed, and what failed is told."""
    case = plays.case
    for played in plays.answered:
        if (retrieval := played.got.retrieval) is None:
            continue
        stages = _list_stages(played)
        if (retrieval.status == "degraded") != bool(stages):
            yield retrieval.status
        expected = {"search"} if played.world.failed_searches else set()
        if case.model in UNUSED_MODELS and (case.is_model_asked or played.world.prompts):
            expected.add("transform")
        # Of a wrong number of texts some may be usable, and `auto` may ask for a model that is not
        # there. On a busy machine a short limit may pass before its step begins.
        allowed = set(expected)
        if case.model in ("wrong count", "late") or case.setting == "auto":
            allowed.add("transform")
        if case.search == "variants hang":
            allowed |= {"transform", "embed", "search"}
        if not expected <= stages <= allowed:
            yield retrieval.degradations


@law
def is_matched(plays: Plays) -> Iterator[Any]:
    """The matches are the passages of the response, in its order."""
    for played in plays.answered:
        if (retrieval := played.got.retrieval) is None:
            continue
        rows = played.read(played.got)
        if len(rows) != len(retrieval.matches) or any(
            row.name not in (match.id, match.text)
            for row, match in zip(rows, retrieval.matches, strict=True)
        ):
            yield retrieval.matches


@law
def is_consistent(plays: Plays) -> Iterator[Any]:
    """The call returns what retrieve returns."""
    if not plays.case.is_uncertain:
        yield from _compare(plays.called, plays.retrieved)


@law
def is_same_either_way(plays: Plays) -> Iterator[Any]:
    """Blocking and async give the same."""
    one, other = _list_stages(plays.turned), _list_stages(plays.retrieved)
    if one != other and not plays.case.is_hasty:
        yield one, other
    if one == other or not plays.case.is_uncertain:
        yield from _compare(plays.turned, plays.retrieved)


@law
def is_as_by_rules(plays: Plays) -> Iterator[Any]:
    """A model of which nothing can be used leaves the rules' result."""
    if plays.by_rules is not None:
        yield from _compare(plays.by_rules, plays.retrieved)


@law
def is_off(plays: Plays) -> Iterator[Any]:
    """Off is the plain call."""
    if plays.case.setting != "off":
        return
    for played in plays.each:
        if repr(played.got.response) != repr(played.plain.response):
            yield played.got.response
        asked = [(call.text, call.number) for call in played.world.calls]
        if asked != [(call.text, call.number) for call in played.plain_calls]:
            yield asked
        if played.world.prompts:
            yield "the model was asked"


@law
def is_free(plays: Plays) -> Iterator[Any]:
    """The rules ask no model, and search for nothing but the question."""
    if plays.case.setting != "rules":
        return
    for played in plays.each:
        if played.world.prompts or {call.text for call in played.world.calls} != {QUERY}:
            yield [call.text for call in played.world.calls]


@law
def is_at_home(plays: Plays) -> Iterator[Any]:
    """The question is searched in the caller's thread, or its task."""
    for played in plays.each:
        calls = [call for call in played.world.calls if call.text == QUERY]
        threads = {call.thread for call in calls}
        if played.task is None:
            yield from threads - {played.thread}
        elif played.case.way == "async":
            yield from {call.task for call in calls} - {played.task}
        elif played.thread in threads:
            yield "the loop's thread, which is blocked by it"


@law
def is_in_context(plays: Plays) -> Iterator[Any]:
    """Every search and the model see the caller's context variables."""
    for played in plays.each:
        seen = {*(call.caller for call in played.world.calls), *played.world.prompts}
        if seen - {"the caller"}:
            yield seen


@law
def is_in_time(plays: Plays) -> Iterator[Any]:
    """Nobody waits for what hangs, and the question is searched while the model thinks."""
    for played in plays.each:
        yield from played.world.outwaited


@law
def is_tidy(plays: Plays) -> Iterator[Any]:
    """Nothing is left running."""
    for played in plays.each:
        yield from played.tasks_left
        if played.running_left:
            yield f"{played.running_left} at work"


@law
def is_discreet(plays: Plays) -> Iterator[Any]:
    """No text is logged above DEBUG."""
    for played in plays.each:
        for line in played.log:
            if any(text in line for text in (QUERY, REPLIES["rewrite"], "Jaco")):
                yield line


def _list_stages(played: Played) -> set[str]:
    """What was told to have failed: ``transform``, ``search``, ..."""
    retrieval = played.got.retrieval
    return {it.stage.partition(".")[0] for it in retrieval.degradations} if retrieval else set()


def _compare(played: Played, reference: Played) -> Iterator[Any]:
    if (played.got.error is None) != (reference.got.error is None):
        yield repr(played.got.error), repr(reference.got.error)
    elif played.got.error is None:
        got, expected = played.read(played.got), played.read(reference.got)
        if got != expected:
            yield f"{got} for {expected}"


def play_all(case: Case) -> Plays:
    by_rules = None
    if case.model in UNUSED_MODELS and case.is_model_asked and not case.has_lists_in_turn:
        by_rules = play(replace(case, setting="rules", model="none"))
    return Plays(play(case), play(case, manner="call"), play(turn(case)), by_rules)


def find_broken_laws(case: Case) -> dict[str, list[str]]:
    """The laws that *case* breaks, each with what was seen."""
    plays = play_all(case)
    seen = {text: [str(it)[:400] for it in check(plays)] for text, check in LAWS.items()}
    return {text: found for text, found in seen.items() if found}
