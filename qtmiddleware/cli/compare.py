"""``qtm compare``: one question, or a file of them, put to every system side by side, from the user's own index."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich import box
from rich.table import Table

from qtmiddleware.cli.asking import Outcome
from qtmiddleware.cli.bench import split_names
from qtmiddleware.cli.console import (
    AsJson,
    ConfigFile,
    History,
    PlainConsole,
    Sets,
    as_json,
    out,
    show_progress,
    to_messages,
)
from qtmiddleware.cli.environment import NO_MODEL, load_config
from qtmiddleware.cli.query import Filter, TopK, open_middleware, parse_filter
from qtmiddleware.cli.show import LABELS, describe_match, shorten
from qtmiddleware.cli.terminal import FAILED, note, say
from qtmiddleware.config import Config
from qtmiddleware.errors import ConfigError
from qtmiddleware.evaluation import AskedQuestion, Question, SystemAnswer, ask_systems, asks_a_model, load_questions
from qtmiddleware.evaluation.compare import OWN
from qtmiddleware.evaluation.ranking import RankedAnswers, RankedSystems, Standing
from qtmiddleware.evaluation.side_by_side import SHOWN
from qtmiddleware.providers.llms import has_language_model
from qtmiddleware.types import Key, Message

_PLACE_CHARS: Final = 36
_DECIDING: Final = frozenset(
    {"transformationType", "maxSubQueries", "preprocess", "keywordEvidence", "escalation", "fusion", "rerank", "scores"}
)


def compare_command(
    question: Annotated[str | None, typer.Argument(help="The question; with --data, those in the file.")] = None,
    systems: Annotated[
        str | None,
        typer.Option(help=f"Names as for bench, with commas between them; by default {', '.join(SHOWN)}."),
    ] = None,
    config: ConfigFile = None,
    sets: Sets = None,
    top_k: TopK = None,
    history: History = None,
    condition: Filter = None,
    answers: Annotated[bool, typer.Option("--answers", help="Let the model answer from what each found.")] = False,
    reference: Annotated[
        str, typer.Option(help="The ideal answer: the model answers, and ranks the answers against it.")
    ] = "",
    data: Annotated[
        Path | None, typer.Option(help="JSON file of questions and ideal answers, or a data set's folder.")
    ] = None,
    questions: Annotated[int | None, typer.Option(min=1, help="How many of --data are asked; all by default.")] = None,
    seed: Annotated[int, typer.Option(help="Draws the order in which the judge sees answers.")] = 0,
    json_output: AsJson = False,
) -> None:
    """Put one question to every system, side by side: passages, answers, time, model calls.

    It needs an index (see 'qtm ingest') and no judgements. With an ideal
    answer (--reference, or "ideal_answer" in the file of --data) a language
    model answers from what each system found and ranks the answers.
    'yours' is the system of your own config.
    """
    if (question is None) == (data is None):
        raise ConfigError("give either a question or --data, a file of questions", path="question")
    if data is not None and (reference or history):
        raise ConfigError("--reference and --history belong to one question; a file has its own", path="--data")
    asked = _list_questions(question, reference, history) if data is None else list(load_questions(data))[:questions]
    loaded = load_config(config, sets)
    names = _choose_systems(systems, loaded, has_own=_sets_something(loaded))
    has_model = has_language_model(loaded.settings)
    if not has_model and (answers or any(one.reference for one in asked)):
        raise ConfigError(NO_MODEL, path="answers")
    wanted = parse_filter(condition)
    with open_middleware(loaded, config) as middleware:
        if not has_model:
            note(f"{NO_MODEL} Systems that ask none are compared.")
        with show_progress() as update:
            found = ask_systems(
                middleware.retriever,
                asked,
                names,
                answers=answers,
                arguments={} if wanted is None else {"filter": wanted},
                top_k=top_k,
                seed=seed,
                progress=update,
            )
    if json_output:
        rows = [_to_dict(one, found.ranking(one.question)) for one in found.questions]
        as_json({"questions": rows, "ranked": None if found.ranked is None else found.ranked.to_dict()})
    else:
        for at, one in enumerate(found.questions):
            if at:
                say()
            _show_question(one, found.ranking(one.question))
        if found.ranked is not None:
            _show_ranked(found.ranked)
    if any(one.error is not None for row in found.questions for one in row.systems) or (
        found.ranked is not None and found.ranked.failed
    ):
        raise typer.Exit(FAILED)


def _list_questions(question: str | None, reference: str, history: list[str] | None) -> list[Question]:
    turns = tuple(Message(turn["role"], turn["content"]) for turn in to_messages(history))
    return [Question("question", question or "", turns, {"answer": reference} if reference else {})]


def _sets_something(loaded: Config) -> bool:
    """Whether the config sets anything of its own that decides what is found."""
    return any(origin != "default" and key.partition(".")[0] in _DECIDING for key, _, origin in loaded.rows())


def _choose_systems(named: str | None, loaded: Config, *, has_own: bool) -> list[str]:
    """The names of the systems; one that cannot be asked is refused where it was named."""
    has_model = has_language_model(loaded.settings)
    if named is None:
        shown = [name for name in SHOWN if has_model or not asks_a_model(name)]
        is_askable = has_model or loaded.settings.transformation_type == "none"
        return [*shown, OWN] if has_own and is_askable else shown
    names = split_names(named)
    if not has_model and (asking := [name for name in names if name != OWN and asks_a_model(name)]):
        raise ConfigError(f"{', '.join(asking)} cannot be asked: {NO_MODEL}", path="systems")
    return names


def _to_dict(row: AskedQuestion, ranking: RankedAnswers | None) -> dict[str, Any]:
    asked = [(one.system, _outcome(row, one)) for one in row.systems]
    return {
        "id": row.question.id,
        "question": row.question.text,
        "reference": row.question.reference or None,
        "systems": [{"system": name, **outcome.to_dict()} for name, outcome in asked],
        "ranking": None if ranking is None else ranking.to_dict(),
    }


def _outcome(row: AskedQuestion, one: SystemAnswer) -> Outcome:
    return Outcome(
        question=row.question.text, retrieval=one.retrieval, answer=one.answer, error=one.error, seconds=one.seconds
    )


# --- for people to read -------------------------------------------------------------------------------------------


def _show_question(row: AskedQuestion, ranking: RankedAnswers | None) -> None:
    """Show at what place, and with what score, each system has each passage, and what the model said and cost."""
    say(" ".join(row.question.text.split()))
    numbers: dict[Key, int] = {}
    for one in row.systems:
        for key in _list_keys(one):
            numbers.setdefault(key, len(numbers) + 1)
    held = {key: match for one in row.systems for key, match in zip(_list_keys(one), one.matches, strict=True)}
    body = [
        [
            f"[{number}] {shorten(describe_match(held[key]), _PLACE_CHARS)}",
            *(_format_cell(one, key) for one in row.systems),
        ]
        for key, number in numbers.items()
    ]
    totals = {
        "seconds": [f"{one.seconds:.2f}" for one in row.systems],
        "searches": [_count(one, "searches") for one in row.systems],
        "model calls": [_count(one, "llm_calls") for one in row.systems],
        "cost in $": [_format_cost(one) for one in row.systems],
    }
    _show_table(["place and score", *(one.system for one in row.systems)], body, totals)
    for key, number in numbers.items():
        if text := held[key].text:
            say(f"[{number}] {shorten(text)}")
    for one in row.systems:
        for line in _list_texts(one):
            say(line)
    for line in _list_ranking(ranking) if ranking is not None else ():
        say(line)


def _list_ranking(ranking: RankedAnswers) -> Iterator[str]:
    """The judge's ranking in its own words, or why there is none."""
    if not ranking.reasons:
        yield "\nAll answers are the same." if ranking.error == "equal" else f"\nThe judge failed: {ranking.error}."
        return
    yield "\nJudged against the ideal answer:"
    for standing in ranking.standings:
        yield from _list_judgement(standing)
    for reason in ranking.reasons:
        yield f"  why: {reason.text} ({reason.legend})"
    if ranking.is_flip:
        yield "  Another answer was best when they changed places."


def _list_keys(one: SystemAnswer) -> list[Key]:
    """What makes each passage of a system a row of the table; a text stands in where there is no id."""
    return [(match.namespace, match.id or f"\0{match.text}") for match in one.matches]


def _format_cell(one: SystemAnswer, key: Key) -> str:
    keys = _list_keys(one)
    if key not in keys:
        return "-"
    score = one.matches[keys.index(key)].score
    return f"{keys.index(key) + 1}  {'    -' if score is None else f'{score:.3f}'}"


def _count(one: SystemAnswer, what: str) -> str:
    return "-" if one.retrieval is None else str(getattr(one.retrieval.trace, what))


def _format_cost(one: SystemAnswer) -> str:
    cost = None if one.retrieval is None else one.retrieval.trace.cost_usd
    return "?" if cost is None else f"{cost:.5f}" if cost else "0"


def _list_texts(one: SystemAnswer) -> Iterator[str]:
    """What a system searched beside the question, what went wrong and what the model answered."""
    retrieval = one.retrieval
    rows = [
        f"  {LABELS.get(it.kind, it.kind)}: {shorten(it.text)}"
        for it in (() if retrieval is None else retrieval.variants)
        if it.kind != "original"
    ]
    outcome = Outcome(question="", retrieval=retrieval, answer=one.answer)
    rows += [f"  degraded: {it.stage} {it.reason}" for it in outcome.degradations]
    if one.error is not None:
        rows.append(f"  no answer: {one.error}")
    if one.answer is not None:
        rows.append(f"  answer: {one.answer.text}")
    if rows:
        yield f"\n{one.system}"
        yield from rows


def _list_judgement(standing: Standing) -> Iterator[str]:
    scores = ", ".join(f"{name} {score:g}" for name, score in standing.scores.items())
    yield f"  {standing.rank}. {standing.system}: {scores}"
    for sign, texts in (("+", standing.strengths), ("-", standing.weaknesses)):
        for text in dict.fromkeys(filter(None, texts)):
            yield f"     {sign} {text}"


def _show_ranked(ranked: RankedSystems) -> None:
    """Show how the systems stand on all questions."""
    say()
    if len(ranked.questions) > 1:
        headings = ["", "place", "best", "of", *(next(iter(ranked.standings)).scores if ranked.standings else ())]
        body = [
            [
                f"{it.rank}. {it.system}", f"{it.place:.2f}", str(it.firsts), str(it.questions),
                *(f"{score:.1f}" for score in it.scores.values()),
            ]
            for it in ranked.standings
        ]  # fmt: skip
        _show_table(headings, body, {})
    say(ranked.summary())


def _show_table(headings: Sequence[str], body: Sequence[Sequence[str]], totals: dict[str, list[str]]) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for at, heading in enumerate(headings):
        table.add_column(
            heading, justify="right" if at else "left", no_wrap=True, overflow="ellipsis" if not at else "fold"
        )
    for row in body:
        table.add_row(*row, end_section=row is body[-1] and bool(totals))
    for name, cells in totals.items():
        table.add_row(name, *cells)
    # A file or a pipe has no width.
    console = out if out.is_terminal else PlainConsole(width=sum(3 + _PLACE_CHARS for _ in headings))
    console.print(table, soft_wrap=False)
