"""Write reports: rows for a terminal, Markdown, and one HTML page that loads no other files."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import TYPE_CHECKING, Final

from qtmiddleware.errors import MissingExtra
from qtmiddleware.kit.evaluation import figures
from qtmiddleware.kit.evaluation.compare import Comparison, SystemScore
from qtmiddleware.kit.evaluation.dataset import Dataset
from qtmiddleware.kit.evaluation.figures import UNKNOWN, quote_name
from qtmiddleware.kit.evaluation.gate import GateResult
from qtmiddleware.kit.evaluation.measures import (
    FEW,
    PRIMARY,
    TOLERANCE,
)
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
# Only this page's own style may be used. The browser recognises the style by its hash.
_POLICY: Final = "default-src 'none'; style-src 'sha256-{}'; base-uri 'none'; form-action 'none'"


# --- figures --------------------------------------------------------------------------------------

# The meaning and the format of each column in the table of all systems.
_COLUMNS: Final[Mapping[str, tuple[str, Callable[[SystemScore], str]]]] = {
    PRIMARY: (
        "quality of the first ten passages, 0 to 1",
        lambda score: figures.format_number(score.means.get(PRIMARY), 3),
    ),
    "gain [95%]": (
        f"{PRIMARY} in points (hundredths) above the baseline; {MARK} is more than chance",
        # A space in place of the mark keeps the numbers of the column aligned.
        lambda score: (
            figures.format_gain(score.difference)
            + (MARK if score.difference.is_significant else " ")
        ),
    ),
    "R@10": (
        "share of the relevant passages that are among the first ten",
        lambda score: figures.format_number(score.means.get("R@10"), 3),
    ),
    "hurt": (
        f"questions that got worse (lower {PRIMARY})",
        lambda score: figures.format_share(score.hurt_rate),
    ),
    "+ms p50": (
        "milliseconds added, median of the questions",
        lambda score: figures.format_milliseconds(score.added_ms),
    ),
    "searches": (
        "searches of the index per question",
        lambda score: figures.format_number(score.searches_per_question),
    ),
    "calls": (
        "model calls per question",
        lambda score: figures.format_number(score.calls_per_question),
    ),
    "$/1k": (
        "US dollars for the model per 1,000 questions",
        lambda score: figures.format_dollars(score.usd_per_thousand),
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
        lines.append([shorten_text(score.name, figures.NAME_LENGTH), *cells.values()])
    return lines


def count_relevant_first(score: SystemScore) -> int:
    """Return the number of questions for which the system's first passage is relevant."""
    return sum(rank > 1.0 - TOLERANCE for rank in score.per_query.values["MRR@10"].values())


# --- verdicts -------------------------------------------------------------------------------------


def verdict(comparison: Comparison) -> str:
    """Return the verdict on *comparison* in a few sentences."""
    return f"{_write_headline(comparison)} {_write_details(comparison)}"


def find_winner(comparison: Comparison) -> SystemScore | None:
    """Return the system with the largest significant gain; ``None`` if there is none."""
    return _find_largest_gain(filter(_has_significant_gain, _list_working(comparison)))


def _list_working(comparison: Comparison) -> list[SystemScore]:
    # If every answer is degraded, a gain does not come from the system's own settings.
    return [score for score in comparison.challengers if score.degraded < len(score.runs)]


def _has_significant_gain(score: SystemScore) -> bool:
    return score.difference.is_significant and score.difference.gain > TOLERANCE


def _find_largest_gain(scores: Iterable[SystemScore]) -> SystemScore | None:
    return max(scores, key=lambda score: score.difference.gain, default=None)


def _write_headline(comparison: Comparison) -> str:
    base, winner = comparison[comparison.baseline], find_winner(comparison)
    before = count_relevant_first(base)
    total = format_count(comparison.questions, "question")
    if winner is None:
        return (
            f"No system is clearly better than {quote_name(base.name)}, which has the right passage"
            f" first for {before:,} of {total}."
        )
    after = count_relevant_first(winner)
    if after > before:
        first = f"{after:,} of {total} instead of {before:,}"
        return f"The right passage comes first for {first}; {_count_worse(winner)}."
    return f"{_count_better(winner, total)} and {_count_worse(winner)}."


def _count_better(score: SystemScore, total: str) -> str:
    better = sum(gain > TOLERANCE for gain in score.gains.values())
    return f"{better:,} of {total} {'gets' if better == 1 else 'get'} better"


def _count_worse(score: SystemScore) -> str:
    worse = sum(gain < -TOLERANCE for gain in score.gains.values())
    return format_count(worse, "gets worse", "get worse") if worse else "none gets worse"


def _write_details(comparison: Comparison) -> str:
    winner = find_winner(comparison)
    if winner is not None:
        gain = f"{quote_name(winner.name)} gains {_describe_gain(winner)}"
        return (
            f"{gain} over {quote_name(comparison.baseline)}. {_describe_price(comparison, winner)}"
        )
    best = _find_largest_gain(_list_working(comparison))
    text = "No system gained anything."
    if best is not None:
        total = format_count(comparison.questions, "question")
        counts = f"{_count_better(best, total)} and {_count_worse(best)}."
        text = f"No system gained anything: with {quote_name(best.name)}, {counts}"
        if best.difference.gain > TOLERANCE:
            text = (
                f"The largest gain, {_describe_gain(best)} by {quote_name(best.name)},"
                f" {figures.describe_chance(best.difference)}: {counts}"
            )
    worse = [
        quote_name(score.name)
        for score in comparison.challengers
        if score.difference.is_significant and score.difference.gain < -TOLERANCE
    ]
    if worse:
        text += f" Significantly worse: {figures.join_names(worse)}."
    if comparison.questions < FEW:
        text += " With so few questions, only a large difference can be seen."
    return text


def _describe_gain(score: SystemScore) -> str:
    low, high = map(figures.format_points, (score.difference.low, score.difference.high))
    size = figures.format_size(score.difference.gain)
    return f"{size} points of {PRIMARY} (95% interval {low} to {high})"


def _describe_price(comparison: Comparison, best: SystemScore) -> str:
    adds = f"It adds {figures.format_duration(best.added_ms)} (median"
    if not best.llm_calls:
        return f"{adds}) and calls no model."
    remark = "" if comparison.counts_model_time else ", without the model’s own time"
    cost = best.usd_per_thousand
    price = "at an unknown price"
    if cost is not None:
        price = f"for {figures.format_dollars(cost)} per 1,000 questions"
    calls = figures.format_number(best.calls_per_question)
    text = f"{adds}{remark}) and calls the model {calls} times per question, {price}."
    free = _find_largest_gain(system for system in comparison.challengers if not system.llm_calls)
    if free is None or free.difference.gain <= TOLERANCE:
        return f"{text} No system gains without a model."
    gain, chance = figures.format_gain(free.difference), ""
    if not free.difference.is_significant:
        chance = f", which {figures.describe_chance(free.difference)}"
    return f"{text} Without a model, {quote_name(free.name)} gains {gain}{chance}."


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
        """Return the report as Markdown."""
        parts = [
            f"# {escape_text(self.headline, _LONGEST)}",
            escape_text(self.details, _LONGEST),
            *(f"> **Note:** {escape_text(note, 400)}" for note in self.notes),
            *(part for section in self.sections for part in _render_section(section)),
            escape_text(self.method, _LONGEST),
        ]
        return "\n\n".join(filter(None, parts)) + "\n"

    def to_html(self) -> str:
        """Return the report as one page. Raises `MissingExtra` if jinja2 is not installed."""
        template, style = _load_template_and_style()
        policy = _POLICY.format(b64encode(sha256(style.encode()).digest()).decode())
        return template.render(report=self, policy=policy, style=style)


def report_comparison(
    comparison: Comparison, data: Dataset = _NO_DATA, gate: GateResult | None = None
) -> Report:
    """Return a report on *comparison*, and with *gate* on what changed since an earlier run.

    *data* has the texts of questions and passages, to show the questions that got worse.
    """
    headline, details = _write_headline(comparison), _write_details(comparison)
    explained = "; ".join(f"{name}: {meaning}" for name, (meaning, _) in _COLUMNS.items())
    if not comparison.counts_model_time:
        explained += " (milliseconds are without the model’s own time)"
    passages = "" if comparison.passages is None else f", {comparison.passages:,} passages"
    sections = [
        Section(
            f"{comparison.dataset}: {format_count(comparison.questions, 'question')}{passages}",
            f"{explained}." if gate is None else f"{headline} {details} {explained}.",
            HEADINGS,
            rows(comparison),
        )
    ]
    losers = [score for score in comparison.challengers if score.worst(1)]
    shown = find_winner(comparison) or _find_largest_gain(losers)
    if shown is not None and (worst := shown.worst(_WORST)):
        entries = [_build_worse_entry(comparison, shown, id_, data) for id_, _ in worst]
        heading = f"Questions that get worse most with {shown.name}"
        sections.append(Section(heading, entries=entries))
    if gate is not None:
        sections.insert(0, _build_gate_section(gate))
        headline, details = gate.headline, " ".join(gate.sentences[1:])
    count = format_count(len(comparison.challengers), "comparison")
    return Report(
        headline=headline,
        details=details,
        subject=comparison.dataset,
        notes=comparison.notes,
        sections=sections,
        method=f"Compared with {shorten_text(comparison.baseline, figures.NAME_LENGTH)}: paired"
        f" bootstrap interval and two-sided paired randomisation test, seed {comparison.seed},"
        f" corrected for {count} after Holm.",
    )


def _build_gate_section(gate: GateResult) -> Section:
    table = []
    for change in gate.changes:
        worst = [f"{id_[:40]} ({figures.format_points(gain)})" for id_, gain in change.worst()]
        table.append((change.name, ", ".join(worst)))
    heading = f"Questions that lost most {PRIMARY} since {gate.baseline}"
    return Section(
        heading,
        "Losses are in points (hundredths).",
        ("system", "questions"),
        table,
    )


def _build_worse_entry(
    comparison: Comparison, score: SystemScore, question_id: str, data: Dataset
) -> Entry:
    base = comparison[comparison.baseline]
    run, base_run = score.runs[question_id], base.runs[question_id]
    texts = {question.id: question.text for question in data.questions}
    grades = data.qrels.get(question_id, {})
    passages = {passage.id: passage for passage in data.passages}
    before = base.per_query.values[PRIMARY][question_id]
    after = score.per_query.values[PRIMARY][question_id]
    relevant = [id_ for id_, grade in grades.items() if grade > 0]
    missed = [id_ for id_ in relevant if id_ not in run.ids[:_FOUND]]
    lists = {
        "What was searched": [
            (variant.kind, shorten_text(variant.text, 400), "") for variant in run.variants
        ],
        f"{comparison.baseline} found": _list_passages(base_run.ids, grades, passages),
        f"{score.name} found": _list_passages(run.ids, grades, passages),
        f"Relevant, but not among the first ten of {score.name}": _list_passages(
            missed, grades, passages
        ),
    }
    return Entry(
        figures.format_points(after - before),
        shorten_text(texts.get(question_id, ""), 400) or question_id,
        f"{shorten_text(question_id, 60)}: {PRIMARY} {before:.3f} to {after:.3f}",
        {heading: items for heading, items in lists.items() if items},
    )


def _list_passages(
    ids: Sequence[str], grades: Mapping[str, int], passages: Mapping[str, Passage]
) -> list[Item]:
    return [
        (
            figures.shorten_start(id_, 60),
            shorten_text(passages[id_].text.replace("\n", ": ", 1), 90) if id_ in passages else "",
            f"relevant, grade {grades[id_]}" if grades.get(id_, 0) > 0 else "",
        )
        for id_ in ids[:_FOUND]
    ]


# --- Markdown and the page ------------------------------------------------------------------------

_MARKUP: Final = re.compile(r"[\\`*\[\]|~#$]|(?<!\w)@|(?<![^\W_])_|_(?![^\W_])")
_BLOCK_START: Final = re.compile(r"^(\d+(?=[.)]))?([-+=.)])")
_ADDRESS: Final = re.compile(r"(?i)(https?|ftp|mailto)(:)|(www)(\.)")


def escape_text(text: str, max_length: int) -> str:
    """Return *text* on one line of Markdown, shortened, without markup or links."""
    return _BLOCK_START.sub(r"\1\\\2", _escape_inline(text, max_length))


def _escape_inline(text: str, max_length: int) -> str:
    line = shorten_text(text, max_length)
    line = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    line = _MARKUP.sub(lambda match: "\\" + match[0], line)
    # GitHub makes links of addresses and of what looks like one.
    return _ADDRESS.sub(lambda match: f"{match[1] or match[3]}&#{ord(match[2] or match[4])};", line)


def _render_section(section: Section) -> Iterator[str]:
    yield f"## {escape_text(section.heading, _LONGEST)}"
    if section.columns:
        head, *body = [
            [_escape_cell(cell) for cell in row] for row in (section.columns, *section.rows)
        ]
        # The names in the first column are aligned to the left, the figures to the right.
        alignment = ["---", *["---:"] * (len(head) - 1)]
        yield "\n".join(f"| {' | '.join(line)} |" for line in (head, alignment, *body))
    yield escape_text(section.remark, _LONGEST)
    for entry in section.entries:
        yield f"### {escape_text(entry.question, 400)}"
        remarks = filter(None, (entry.outcome, entry.remark))
        yield ". ".join(escape_text(text, 400) for text in remarks)
        for heading, items in entry.lists.items():
            bullets = [
                f"* {' '.join(escape_text(part, _LONGEST) for part in item if part)}"
                for item in items
            ]
            yield "\n".join([f"{escape_text(heading, 400)}:", "", *bullets])


def _escape_cell(text: str) -> str:
    return _escape_inline(text.strip(), figures.NAME_LENGTH)


@cache
def _load_template_and_style() -> tuple[jinja2.Template, str]:
    environment = build_environment(_read_file, "eval")
    return environment.get_template("page.html.jinja"), _read_file("page.css")


def build_environment(
    read_template: Callable[[str], str],
    extra_name: str,
) -> jinja2.Environment:
    """Return an environment that escapes every text.

    Raises `MissingExtra`, which names the extra *extra_name*, if jinja2 is not installed.
    """
    try:
        import jinja2
    except ImportError as error:
        raise MissingExtra("jinja2", extra_name) from error
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(read_template),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["short"] = shorten_text
    return environment


def _read_file(file_name: str) -> str:
    return files(__package__).joinpath(file_name).read_text(encoding="utf-8")
