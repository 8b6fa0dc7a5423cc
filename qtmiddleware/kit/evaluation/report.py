"""Write reports: rows for a terminal, Markdown, and one HTML page that loads no other files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final

from qtmiddleware.errors import MissingExtra
from qtmiddleware.kit.evaluation import formatting
from qtmiddleware.kit.evaluation.compare import Comparison, SystemScore
from qtmiddleware.kit.evaluation.dataset import Dataset
from qtmiddleware.kit.evaluation.formatting import NAME_LENGTH, UNKNOWN, format_points, quote_name
from qtmiddleware.kit.evaluation.gate import GateResult
from qtmiddleware.kit.evaluation.measures import FEW, PRIMARY, TOLERANCE
from qtmiddleware.preprocessing.text import format_count, shorten_text
from qtmiddleware.protocols import Passage

if TYPE_CHECKING:
    import jinja2

# Marks a significant gain.
MARK: Final = "*"
_WORST: Final = 10
_FOUND: Final = 10
_LONGEST: Final = 4_000
_NO_DATA: Final = Dataset("", (), (), {})


# --- figures --------------------------------------------------------------------------------------

# The meaning and the format of each column in the table of all systems.
_COLUMNS: Final[Mapping[str, tuple[str, Callable[[SystemScore], str]]]] = {
    PRIMARY: (
        "quality of the first ten passages, 0 to 1",
        lambda score: formatting.format_number(score.means.get(PRIMARY), 3),
    ),
    "gain [95%]": (
        f"{PRIMARY} in points (hundredths) above the baseline; {MARK} is more than chance",
        # A space in place of the mark keeps the numbers of the column aligned.
        lambda score: (
            score.difference.format_gain() + (MARK if score.difference.is_significant else " ")
        ),
    ),
    "R@10": (
        "share of the relevant passages that are among the first ten",
        lambda score: formatting.format_number(score.means.get("R@10"), 3),
    ),
    "hurt": (
        f"questions that got worse (lower {PRIMARY})",
        lambda score: formatting.format_share(score.hurt_rate),
    ),
    "+ms p50": (
        "milliseconds added, median of the questions",
        lambda score: formatting.format_milliseconds(score.added_ms),
    ),
    "searches": (
        "searches of the index per question",
        lambda score: formatting.format_number(score.searches_per_question),
    ),
    "calls": (
        "model calls per question",
        lambda score: formatting.format_number(score.calls_per_question),
    ),
    "$/1k": (
        "US dollars for the model per 1,000 questions",
        lambda score: formatting.format_dollars(score.usd_per_thousand),
    ),
}


HEADINGS: Final = ("system", *_COLUMNS)
"""The column headings for `rows`: first the system's name, then the figures."""


def rows(comparison: Comparison) -> list[list[str]]:
    """Return one row per system, in the comparison's order: its name and its figures.

    An unknown number is a dash. A gain is in points (hundredths) of nDCG@10, with its 95% interval.
    ``*`` marks a gain that is significant after Holm's correction.
    """
    lines = []
    for score in comparison.systems:
        cells = {name: format_cell(score) for name, (_, format_cell) in _COLUMNS.items()}
        if score.name == comparison.baseline:
            cells["gain [95%]"] = UNKNOWN
        lines.append([shorten_text(score.name, NAME_LENGTH), *cells.values()])
    return lines


# --- the verdict ----------------------------------------------------------------------------------


def verdict(comparison: Comparison) -> str:
    """Return the verdict on *comparison* in a few sentences."""
    return " ".join(_write_verdict(comparison))


def _write_verdict(comparison: Comparison) -> tuple[str, str]:
    base, winner = comparison[comparison.baseline], _find_winner(comparison)
    name, before = quote_name(base.name), _count_right_first(base)
    total = format_count(comparison.questions, "question")
    if winner is None:
        headline = (
            f"No system is clearly better than {name}, which has the right passage first for"
            f" {before:,} of {total}."
        )
        return headline, _describe_failure(comparison, total)
    after = _count_right_first(winner)
    headline = f"{_count_better(winner, total)} and {_count_worse(winner)}."
    if after > before:
        headline = (
            f"The right passage comes first for {after:,} of {total} instead of {before:,};"
            f" {_count_worse(winner)}."
        )
    details = f"{quote_name(winner.name)} gains {_describe_gain(winner)} over {name}."
    return headline, details + (_describe_price(comparison, winner) if winner.llm_calls else "")


def _describe_price(comparison: Comparison, winner: SystemScore) -> str:
    calls = formatting.format_number(winner.calls_per_question)
    price = "at an unknown price"
    if winner.usd_per_thousand is not None:
        price = f"for {formatting.format_dollars(winner.usd_per_thousand)} per 1,000 questions"
    text = f" It calls the model {calls} times per question, {price}."
    free = _find_largest_gain(score for score in comparison.challengers if not score.llm_calls)
    if free is None or free.difference.gain <= 0:
        return f"{text} No system gains without a model."
    gain, chance = free.difference.format_gain(), free.difference.describe_chance()
    return f"{text} Without a model, {quote_name(free.name)} gains {gain}, which {chance}."


def _find_winner(comparison: Comparison) -> SystemScore | None:
    return _find_largest_gain(
        score
        for score in _list_working(comparison)
        if score.difference.is_significant and score.difference.gain > 0
    )


def _list_working(comparison: Comparison) -> list[SystemScore]:
    # If every answer is degraded, a gain does not come from the system's own settings.
    return [score for score in comparison.challengers if score.degraded < len(score.runs)]


def _find_largest_gain(scores: Iterable[SystemScore]) -> SystemScore | None:
    return max(scores, key=lambda score: score.difference.gain, default=None)


def _count_right_first(score: SystemScore) -> int:
    return sum(rank > 1.0 - TOLERANCE for rank in score.per_query["MRR@10"].values())


def _count_better(score: SystemScore, total: str) -> str:
    better = score.difference.better
    return f"{better:,} of {total} {'gets' if better == 1 else 'get'} better"


def _count_worse(score: SystemScore) -> str:
    worse = score.difference.worse
    return format_count(worse, "gets worse", "get worse") if worse else "none gets worse"


def _describe_failure(comparison: Comparison, total: str) -> str:
    best = _find_largest_gain(_list_working(comparison))
    text = "No system gained anything."
    if best is not None:
        counts = f"{_count_better(best, total)} and {_count_worse(best)}."
        text = f"No system gained anything: with {quote_name(best.name)}, {counts}"
        if best.difference.gain > 0:
            text = (
                f"The largest gain, {_describe_gain(best)} by {quote_name(best.name)},"
                f" {best.difference.describe_chance()}: {counts}"
            )
    worse = [
        score.name
        for score in comparison.challengers
        if score.difference.is_significant and score.difference.gain < 0
    ]
    if worse:
        text += f" Significantly worse: {formatting.quote_names(worse)}."
    if comparison.questions < FEW:
        text += " With so few questions, only a large difference can be seen."
    return text


def _describe_gain(score: SystemScore) -> str:
    low, high = format_points(score.difference.low), format_points(score.difference.high)
    size = formatting.format_size(score.difference.gain)
    return f"{size} points of {PRIMARY} (95% interval {low} to {high})"


# --- the report -----------------------------------------------------------------------------------

# A label such as a passage's id, its text, and a remark such as "relevant, grade 2".
Item = tuple[str, str, str]


@dataclass(frozen=True, slots=True, repr=False)
class Entry:
    """A question with its outcome and lists of texts under their headings."""

    outcome: str
    question: str
    remark: str
    lists: Mapping[str, Sequence[Item]]


@dataclass(frozen=True, slots=True, repr=False)
class Section:
    """A section of a report: a table, whose first column has names, and questions."""

    heading: str
    remark: str = ""
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    entries: Sequence[Entry] = ()


@dataclass(frozen=True, slots=True, repr=False)
class Report:
    """A report that can be written as Markdown or as a page. No text is escaped yet."""

    headline: str
    details: str
    subject: str
    notes: Sequence[str]
    sections: Sequence[Section]
    method: str

    def to_markdown(self) -> str:
        """Return the report as Markdown. Raises `MissingExtra` if jinja2 is not installed."""
        return load_template(__package__, "eval", "report.md.jinja").render(report=self)

    def to_html(self) -> str:
        """Return the report as one page. Raises `MissingExtra` if jinja2 is not installed."""
        return load_template(__package__, "eval", "page.html.jinja").render(report=self)


def report_comparison(
    comparison: Comparison,
    data: Dataset = _NO_DATA,
    gate: GateResult | None = None,
) -> Report:
    """Return a report on *comparison*, and with *gate* on what changed since an earlier run.

    *data* has the texts of questions and passages, to show the questions that got worse.
    """
    headline, details = _write_verdict(comparison)
    explained = "; ".join(f"{name}: {meaning}" for name, (meaning, _) in _COLUMNS.items())
    passages = "" if comparison.passages is None else f", {comparison.passages:,} passages"
    sections = [
        Section(
            f"{comparison.dataset}: {format_count(comparison.questions, 'question')}{passages}",
            f"{explained}." if gate is None else f"{headline} {details} {explained}.",
            HEADINGS,
            rows(comparison),
        )
    ]
    losers = [score for score in comparison.challengers if score.difference.worst(1)]
    shown = _find_winner(comparison) or _find_largest_gain(losers)
    if shown is not None and (worst := shown.difference.worst(_WORST)):
        entries = [_build_worse_entry(comparison, shown, id_, data) for id_, _ in worst]
        heading = f"Questions that get worse most with {shown.name}"
        sections.append(Section(heading, entries=entries))
    if gate is not None:
        headline, details = gate.headline, " ".join(gate.sentences[1:])
    count = format_count(len(comparison.challengers), "comparison")
    return Report(
        headline=headline,
        details=details,
        subject=comparison.dataset,
        notes=comparison.notes,
        sections=sections,
        method=f"Compared with {shorten_text(comparison.baseline, NAME_LENGTH)}: paired"
        f" bootstrap interval and two-sided paired randomisation test, seed {comparison.seed},"
        f" corrected for {count} after Holm.",
    )


def _build_worse_entry(
    comparison: Comparison,
    score: SystemScore,
    question_id: str,
    data: Dataset,
) -> Entry:
    base = comparison[comparison.baseline]
    run, base_run = score.runs[question_id], base.runs[question_id]
    texts = {question.id: question.text for question in data.questions}
    grades = data.qrels.get(question_id, {})
    passages = {passage.id: passage for passage in data.passages}
    before = base.per_query[PRIMARY][question_id]
    after = score.per_query[PRIMARY][question_id]
    lists = {
        "What was searched": [
            (variant.kind, shorten_text(variant.text, 400), "") for variant in run.variants
        ],
        f"{comparison.baseline} found": _list_passages(base_run.ids, grades, passages),
        f"{score.name} found": _list_passages(run.ids, grades, passages),
    }
    return Entry(
        format_points(after - before),
        shorten_text(texts.get(question_id, ""), 400) or question_id,
        f"{shorten_text(question_id, 60)}: {PRIMARY} {before:.3f} to {after:.3f}",
        {heading: items for heading, items in lists.items() if items},
    )


def _list_passages(
    ids: Sequence[str],
    grades: Mapping[str, int],
    passages: Mapping[str, Passage],
) -> list[Item]:
    return [
        (
            shorten_text(id_, 60),
            shorten_text(passages[id_].text.replace("\n", ": ", 1), 90) if id_ in passages else "",
            f"relevant, grade {grades[id_]}" if grades.get(id_, 0) > 0 else "",
        )
        for id_ in ids[:_FOUND]
    ]


# --- Markdown and the page ------------------------------------------------------------------------

_MARKUP: Final = re.compile(r"[\\`*\[\]|~#$]|(?<!\w)@|(?<![^\W_])_|_(?![^\W_])")
_BLOCK_START: Final = re.compile(r"^(\d+(?=[.)]))?([-+=.)])")
_ADDRESS: Final = re.compile(r"(?i)(https?|ftp|mailto)(:)|(www)(\.)")


def escape_text(text: str, max_length: int = _LONGEST) -> str:
    """Return *text* on one line of Markdown, shortened, without markup or links."""
    return _BLOCK_START.sub(r"\1\\\2", _escape_inline(text, max_length))


def _escape_inline(text: str, max_length: int) -> str:
    line = shorten_text(text, max_length)
    line = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    line = _MARKUP.sub(lambda match: "\\" + match[0], line)
    # GitHub makes links of addresses and of what looks like one.
    return _ADDRESS.sub(lambda match: f"{match[1] or match[3]}&#{ord(match[2] or match[4])};", line)


def _escape_cell(text: str) -> str:
    return _escape_inline(text.strip(), NAME_LENGTH)


@cache
def load_template(package: str, extra_name: str, file_name: str) -> jinja2.Template:
    """Return a template in *package*. A template for HTML escapes every text.

    Raises `MissingExtra`, which names the extra *extra_name*, if jinja2 is not installed.
    """
    try:
        import jinja2
    except ImportError as error:
        raise MissingExtra("jinja2", extra_name) from error
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(package, ""),
        autoescape=".html" in file_name,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(short=shorten_text, line=escape_text, cell=_escape_cell)
    return environment.get_template(file_name)
