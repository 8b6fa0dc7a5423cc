"""What ``qtm bench`` lets a language model do beside transforming: write a test set, and judge answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qtmiddleware.cli.bench_show import note
from qtmiddleware.cli.environment import NO_MODEL
from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import ConfigError
from qtmiddleware.evaluation import Comparison, Question, require_extras
from qtmiddleware.evaluation import Progress as Told
from qtmiddleware.evaluation.bench import OpenedBench, asked_model
from qtmiddleware.providers.llms import has_language_model

if TYPE_CHECKING:
    from qtmiddleware.evaluation.judging import Judged


def generated(
    folder: Path, docs: Sequence[Path], settings: Settings, *, count: int, cache: Path, seed: int, told: Told
) -> None:
    """Let the model write *count* questions about the documents at *docs*, and make a data set of them in *folder*."""
    from qtmiddleware.evaluation.testsets import check_free, generate, passages_of, write

    if not has_language_model(settings):
        raise ConfigError(NO_MODEL, path="generate")
    check_free(folder)  # Before anything is paid for.
    require_extras()
    passages = passages_of(docs, settings)
    with asked_model(settings, cache=cache) as model:
        made = generate(
            passages,
            model,
            count=count,
            seed=seed,
            name=folder.name,
            progress=lambda done, total: told("writing questions", done, total),
        )
    if not made.dataset.questions:
        raise ConfigError(f"the model wrote no usable question about the {len(passages):,} passages ({_dropped(made)})")
    write(made.dataset, folder)
    cost = "" if made.cost_usd is None else f", for ${made.cost_usd:.4f}"
    dropped = f"; dropped: {_dropped(made)}" if made.dropped else ""
    note(f"{len(made.dataset.questions)} questions about {len(passages):,} passages are in {folder}{cost}{dropped}")


def _dropped(made: Any) -> str:
    return ", ".join(f"{number} {why}" for why, number in made.dropped.items())


def judgeable(opened: OpenedBench, systems: Sized, count: int, seed: int) -> tuple[Question, ...]:
    """The questions whose answers are judged: *count* of those with a reference answer, drawn by *seed*."""
    if len(systems) < 2:
        raise ConfigError("there is nothing to judge the baseline against; name a second system", path="judge")
    if not opened.has_model:
        raise ConfigError(NO_MODEL, path="judge")
    answered = {one.id for one in opened.data.questions if str(one.metadata.get("answer") or "").strip()}
    if not answered:
        raise ConfigError(
            'none of the questions has a reference answer to judge by: it stands in queries.jsonl as "answer" in the '
            "metadata",
            path="judge",
        )
    return opened.data.only(answered).sampled(count, seed=seed).questions


def judged(
    opened: OpenedBench,
    comparison: Comparison,
    systems: Mapping[str, Mapping[str, Any]],
    questions: Sequence[Question],
    *,
    told: Told,
) -> Judged:
    """The model's answers from the baseline's passages and from those of the best challenger, judged by the model."""
    from qtmiddleware.evaluation.judging import judge

    best = max(comparison.challengers, key=lambda score: score.difference.gain)
    bench = replace(opened.bench, model=opened.model)

    def answers(name: str) -> Callable[[Question], str]:
        wrapped = bench.wrapped(systems[name])
        return lambda question: wrapped.answer(question.text, history=question.history).text

    return judge(
        answers(comparison.baseline),
        answers(best.name),
        questions,
        opened.model,
        baseline_name=comparison.baseline,
        challenger_name=best.name,
        seed=comparison.seed,
        progress=lambda done, total: told("judging answers", done, total),
    )
