"""Write reports: rows for a terminal, Markdown, and one HTML page that loads no other files."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import TYPE_CHECKING, Final

from qtmiddleware.errors import ConfigError, MissingExtra
from qtmiddleware.kit.evaluation import figures
from qtmiddleware.kit.evaluation.compare import Comparison, SystemScore
from qtmiddleware.kit.evaluation.dataset import Dataset
from qtmiddleware.kit.evaluation.figures import UNKNOWN, quote_name
from qtmiddleware.kit.evaluation.gate import GateResult
from qtmiddleware.kit.evaluation.judge import (
    CRITERIA,
    RankedAnswers,
    RankedSystems,
    Standing,
)
from qtmiddleware.kit.evaluation.measures import (
    FEW,
    PRIMARY,
    SIGNIFICANT,
    TOLERANCE,
    Difference,
    difference,
)
from qtmiddleware.kit.evaluation.side_by_side import AskedQuestion, SideBySide
from qtmiddleware.kit.evaluation.systems import BASELINE
from qtmiddleware.preprocessing.text import clean_text, format_count, shorten_text
from qtmiddleware.protocols import Passage

if TYPE_CHECKING:
    import jinja2

MARK: Final = "*"
"""The mark of a significant gain."""
_FIRST: Final = "MRR@10"
"""The measure that is 1 only if a question's first passage is relevant."""
_WORST: Final = 10
_FOUND: Final = 10
_LONGEST: Final = 4_000
# Only this page's own style may be used. The browser recognises the style by its hash.
_POLICY: Final = "default-src 'none'; style-src 'sha256-{}'; base-uri 'none'; form-action 'none'"


# --- figures --------------------------------------------------------------------------------------


Format = Callable[[SystemScore], str]
_READS: Final = "reads $/1k"


def _format_gain(score: SystemScore) -> str:
    # A space in place of the mark keeps the numbers of the column aligned.
    mark = MARK if score.difference.is_significant else " "
    return figures.format_gain(score.difference) + mark


_COLUMNS: Final[Mapping[str, tuple[str, Format]]] = {
    PRIMARY: (
        "quality of the first ten passages, 0 to 1",
        lambda score: figures.format_measure(score.means.get(PRIMARY)),
    ),
    "gain [95%]": (
        f"{PRIMARY} in points (hundredths) above the baseline; {MARK} is more than chance",
        _format_gain,
    ),
    "R@10": (
        "share of the relevant passages that are among the first ten",
        lambda score: figures.format_measure(score.means.get("R@10")),
    ),
    "hurt": (
        f"questions that got worse (lower {PRIMARY})",
        lambda score: figures.format_share(score.hurt_rate),
    ),
    "+ms p50": (
        "milliseconds added, median of the questions",
        lambda score: figures.format_milliseconds(score.added_ms.p50),
    ),
    "p95": (
        "milliseconds added, at most this for 95 of 100 questions",
        lambda score: figures.format_milliseconds(score.added_ms.p95),
    ),
    "searches": (
        "searches of the index per question",
        lambda score: figures.format_rate(score.searches_per_question),
    ),
    _READS: (
        "US dollars for the searches of 1,000 questions",
        lambda score: figures.format_dollars(score.read_usd_per_thousand),
    ),
    "calls": (
        "model calls per question",
        lambda score: figures.format_rate(score.llm_calls / len(score.runs)),
    ),
    "$/1k": (
        "US dollars for the model per 1,000 questions",
        lambda score: figures.format_dollars(score.usd_per_thousand),
    ),
}
"""The meaning and the format of each column in the table of all systems."""


def headings(comparison: Comparison) -> list[str]:
    """Return the column headings for `rows`: first the system's name, then the figures.

    The cost of searches is included if ``store.readPrice`` is set.
    """
    has_prices = any(score.read_usd_per_thousand is not None for score in comparison.systems)
    return ["system", *(name for name in _COLUMNS if has_prices or name != _READS)]


def rows(comparison: Comparison) -> list[list[str]]:
    """Return one row per system, in the comparison's order: its name and its figures.

    An unknown number is a dash. A gain is in points (hundredths) of nDCG@10, with its 95% interval.
    ``*`` marks a gain that is significant after Holm's correction.
    """
    lines = []
    for score in comparison.systems:
        cells = {name: format_figure(score) for name, (_, format_figure) in _COLUMNS.items()}
        if score.name == comparison.baseline:
            cells["gain [95%]"] = UNKNOWN
        lines.append([clean_text(score.name), *(cells[it] for it in headings(comparison)[1:])])
    return lines


def count_relevant_first(score: SystemScore) -> int:
    """Return the number of questions for which the system's first passage is relevant."""
    return sum(rank > 1.0 - TOLERANCE for rank in score.per_query.values[_FIRST].values())


# --- verdicts -------------------------------------------------------------------------------------


def verdict(comparison: Comparison) -> str:
    """Return the verdict on *comparison* in a few sentences."""
    return " ".join(_describe(comparison))


def find_winner(comparison: Comparison) -> SystemScore | None:
    """Return the system with the largest significant gain; ``None`` if there is none."""
    return _find_largest_gain(filter(_has_significant_gain, comparison.challengers))


def _describe(comparison: Comparison) -> tuple[str, str]:
    """Return the headline and the details of the verdict."""
    best = find_winner(comparison)
    base, base_score = quote_name(comparison.baseline), comparison[comparison.baseline]
    if best is not None:
        gain = best.difference
        return (
            _describe_first_passages(comparison, best),
            (
                f"{quote_name(best.name)} gains {figures.format_size(gain.gain)} points of"
                f" {PRIMARY} over {base} (95% interval {_format_ends(gain)})."
                f" {_describe_price(comparison, best)}{_describe_alternative(comparison, best)}"
            ),
        )
    total = format_count(comparison.questions, "question")
    first = f"the right passage first for {count_relevant_first(base_score):,} of {total}"
    if not comparison.challengers:
        return (
            f"{base} has {first}.",
            "Only the baseline was measured, so there is nothing to compare it with.",
        )
    count = comparison.questions
    caution = " With so few questions, only a large difference can be seen." if count < FEW else ""
    questions = "one question" if count == 1 else f"these {count:,} questions"
    return (
        f"No system is clearly better than {base}, which has {first}.",
        f"On {questions} {_describe_gains_and_losses(comparison)}.{caution}",
    )


def _describe_first_passages(comparison: Comparison, best: SystemScore) -> str:
    before = count_relevant_first(comparison[comparison.baseline])
    after, total = count_relevant_first(best), f"{comparison.questions:,}"
    helped = sum(gain > TOLERANCE for gain in best.gains.values())
    hurt = sum(gain < -TOLERANCE for gain in best.gains.values())
    if after > before:
        worse = f"{hurt:,} of {total} {_get(hurt)} worse" if hurt else "none gets worse"
        questions = format_count(comparison.questions, "question")
        return (
            f"The right passage comes first for {after:,} of {questions} instead of {before:,};"
            f" {worse}."
        )
    worse = f"{hurt:,} {_get(hurt)} worse" if hurt else "none gets worse"
    instead = ", as before" if after == before else f" instead of {before:,}"
    return (
        f"{helped:,} of {total} questions {_get(helped)} better and {worse}; the right passage"
        f" comes first for {after:,}{instead}."
    )


def _get(count: int) -> str:
    return "gets" if count == 1 else "get"


def _format_ends(gain: Difference) -> str:
    return f"{figures.format_points(gain.low)} to {figures.format_points(gain.high)}"


def _describe_price(comparison: Comparison, best: SystemScore) -> str:
    """Return sentences on the time and the price of *best*, and what is gained without a model."""
    remark = ", without the model’s own time" if not comparison.counts_model_time else ""
    searches = best.searches_per_question
    searching = "" if searches is None else f", makes {figures.format_rate(searches)} searches"
    adds = f"It adds {figures.format_duration(best.added_ms.p50)} (median"
    if not best.llm_calls:
        return f"{adds}){searching}{' per question' if searching else ''} and calls no model."
    cost = best.usd_per_thousand
    price = (
        "at an unknown price"
        if cost is None
        else f"for {figures.format_dollars(cost)} per 1,000 questions"
    )
    calls = figures.format_rate(best.llm_calls / len(best.runs))
    text = f"{adds}{remark}){searching} and calls the model {calls} times per question, {price}."
    free = [score for score in comparison.challengers if not score.llm_calls]
    gained = _find_largest_gain(filter(_has_significant_gain, free)) or _find_largest_gain(free)
    if gained is None or gained.difference.gain <= TOLERANCE:
        return f"{text} No system gains without a model."
    gain = figures.format_gain(gained.difference)
    chance = figures.describe_chance(gained.difference)
    remark = "" if _has_significant_gain(gained) else f", which {chance}"
    return f"{text} Without a model, {quote_name(gained.name)} gains {gain}{remark}."


def _describe_alternative(comparison: Comparison, best: SystemScore) -> str:
    """Return a sentence on a system that may be as good as *best*; ``""`` if there is none.

    Cheaper systems are considered first, then the second best.
    """
    others = [
        score
        for score in comparison.challengers
        if _has_significant_gain(score) and score is not best
    ]
    others.sort(key=lambda score: (-score.difference.gain, _get_cost_key(score)))
    cheaper = [score for score in others if _get_cost_key(score) < _get_cost_key(best)]
    for score in (*cheaper, *others[:1]):
        # Compared question by question, because both systems answered the same questions.
        gains = [best.gains[id_] - score.gains[id_] for id_ in best.gains]
        lead = difference(gains, seed=comparison.seed)
        lead = replace(lead, p_holm=lead.p)
        if lead.p < SIGNIFICANT:
            continue
        cost = figures.format_dollars(score.usd_per_thousand) if score.llm_calls else ""
        name = quote_name(score.name) + (f" ({cost})" if cost not in ("", UNKNOWN) else "")
        if abs(lead.gain) <= TOLERANCE:
            return f" {name} does as well."
        return (
            f" {name} may be as good: the {figures.format_size(lead.gain)} points between them"
            f" {figures.format_interval(lead)} {figures.describe_chance(lead)}."
        )
    return ""


def _get_cost_key(score: SystemScore) -> tuple[float, float, float]:
    """Return a key that sorts systems by price, then by model calls, then by searches."""
    price, searches = score.usd_per_thousand, score.searches_per_question
    unknown = float("inf")
    return (
        unknown if price is None else price,
        score.llm_calls / len(score.runs),
        unknown if searches is None else searches,
    )


def _describe_gains_and_losses(comparison: Comparison) -> str:
    best = _find_largest_gain(comparison.challengers)
    worse = [
        score
        for score in comparison.challengers
        if score.difference.is_significant and score.difference.gain < -TOLERANCE
    ]
    text = "no system gained anything"
    if best is not None and best.difference.gain > TOLERANCE:
        gain = best.difference
        text = (
            f"the largest gain, {figures.format_size(gain.gain)} points of {PRIMARY} by"
            f" {quote_name(best.name)} (95% interval {_format_ends(gain)}),"
            f" {figures.describe_chance(gain)}"
        )
    if not worse:
        return text
    subject = f"{quote_name(worse[0].name)} is" if len(worse) == 1 else f"{len(worse)} systems are"
    return f"{text}, and {subject} significantly worse"


def _has_significant_gain(score: SystemScore) -> bool:
    # If every answer is degraded, the gain does not come from the system's own settings.
    return (
        score.degraded < len(score.runs)
        and score.difference.is_significant
        and score.difference.gain > TOLERANCE
    )


def _find_largest_gain(scores: Iterator[SystemScore] | Sequence[SystemScore]) -> SystemScore | None:
    return max(scores, key=lambda score: score.difference.gain, default=None)


# --- the report -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Item:
    """A text in a list, such as a passage with its id and the remark ``relevant, grade 2``."""

    label: str
    text: str = field(repr=False)
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Entry:
    """A question with its outcome and lists of texts."""

    outcome: str
    question: str = field(repr=False)
    remark: str
    lists: tuple[tuple[str, tuple[Item, ...]], ...]


@dataclass(frozen=True, slots=True)
class Section:
    """A section of a report: a table, whose first column has names, and questions."""

    heading: str
    remark: str = ""
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    entries: Sequence[Entry] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """A report that can be written as Markdown or as a page. No text is escaped yet.

    Attributes:
        headline: The verdict.
        details: The sentences below the verdict.
        subject: The name of the data set or the judge.
        notes: Sentences on what the figures do not show.
        sections: The sections.
        method: How the figures were measured.
    """

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
    comparison: Comparison, data: Dataset | None = None, gate: GateResult | None = None
) -> Report:
    """Return a report on *comparison*.

    Args:
        comparison: The figures.
        data: The texts of questions and passages, to show the questions that got worse.
        gate: The comparison with an earlier run, which then comes first.
    """
    headline, details = _describe(comparison)
    passages = "" if comparison.passages is None else f", {comparison.passages:,} passages"
    missing = "" if comparison.counts_model_time else ", without the model’s own time"
    explained = "; ".join(
        f"{name}: {_COLUMNS[name][0]}{missing if 'milliseconds' in _COLUMNS[name][0] else ''}"
        for name in headings(comparison)[1:]
    )
    sections = [
        Section(
            f"{comparison.dataset}: {format_count(comparison.questions, 'question')}{passages}",
            f"{explained}.",
            headings(comparison),
            rows(comparison),
        )
    ]
    best = find_winner(comparison) or _find_largest_gain(comparison.challengers)
    if best is not None and (worst := best.worst(_WORST)):
        sections.append(
            Section(
                f"Questions that get worse most with {best.name}",
                entries=[_build_worse_entry(comparison, best, id_, data) for id_, _ in worst],
            )
        )
    if gate is not None:
        sections[0] = replace(sections[0], remark=f"{headline} {details} {explained}.")
        sections.insert(0, _build_gate_section(gate))
        headline, details = gate.headline, " ".join(gate.sentences[1:])
    count = len(comparison.challengers)
    hashes = "".join(
        f" {name.capitalize()}: sha256 {value[:16]}."
        for name, value in comparison.fingerprints.items()
        if value
    )
    return Report(
        headline=headline,
        details=details,
        subject=comparison.dataset,
        notes=comparison.notes,
        sections=sections,
        method=f"Compared with {shorten_text(comparison.baseline, figures.NAME_LENGTH)}: paired"
        f" bootstrap interval and two-sided paired randomisation test, seed {comparison.seed},"
        f" corrected for {format_count(count, 'comparison')} after Holm.{hashes}",
    )


def _build_gate_section(gate: GateResult) -> Section:
    table = [
        (
            change.name,
            ", ".join(
                f"{id_[:40]} ({figures.format_points(gain)})" for id_, gain in change.worst(5)
            ),
        )
        for change in gate.changes
    ]
    heading = f"Questions that lost most {gate.rule.measure} since {gate.baseline}"
    return Section(heading, "Losses are in points (hundredths).", ("system", "questions"), table)


def _build_worse_entry(
    comparison: Comparison, score: SystemScore, question_id: str, data: Dataset | None
) -> Entry:
    """Return a question that got worse, with what was searched and found."""
    base = comparison[comparison.baseline]
    run, base_run = score.runs[question_id], base.runs[question_id]
    question = next((it for it in data.questions if it.id == question_id), None) if data else None
    grades = data.qrels.get(question_id, {}) if data else {}
    passages = {passage.id: passage for passage in data.passages} if data else {}
    # Without the data set, the question's text is known only from the searched queries.
    text = (
        question.text
        if question is not None
        else next((it.text for it in base_run.variants if it.kind == "original"), "")
    )
    before, after = (it.per_query.values[PRIMARY][question_id] for it in (base, score))
    missed = [id_ for id_, grade in grades.items() if grade > 0 and id_ not in run.ids[:_FOUND]]
    lists = {
        "Said before": [
            Item(shorten_text(turn.role, 20), shorten_text(turn.content, 160))
            for turn in (question.history[-4:] if question else ())
        ],
        "What was searched": [
            Item(it.kind, shorten_text(it.text, 400), f"weight {figures.format_rate(it.weight)}")
            for it in run.variants[:16]
        ],
        f"{comparison.baseline} found": _list_passages(base_run.ids, grades, passages),
        f"{score.name} found": _list_passages(run.ids, grades, passages),
        f"Relevant, but not among the first ten of {score.name}": _list_passages(
            missed, grades, passages
        ),
    }
    return Entry(
        outcome=figures.format_points(after - before),
        question=shorten_text(text, 400) or question_id,
        remark=f"{shorten_text(question_id, 60)}: {PRIMARY} {figures.format_measure(before)} to"
        f" {figures.format_measure(after)}",
        lists=tuple((heading, tuple(items)) for heading, items in lists.items() if items),
    )


def _list_passages(
    ids: Sequence[str], grades: Mapping[str, int], passages: Mapping[str, Passage]
) -> list[Item]:
    return [
        Item(
            figures.shorten_start(id_, 60),
            shorten_text(passages[id_].text.replace("\n", ": ", 1), 90) if id_ in passages else "",
            f"relevant, grade {grades[id_]}" if grades.get(id_, 0) > 0 else "",
        )
        for id_ in ids[:_FOUND]
    ]


def report_ranking(side_by_side: SideBySide) -> Report:
    """Return a report on the judge's rankings. Raises `ConfigError` if there are none."""
    ranked = side_by_side.ranked
    if ranked is None:
        raise ConfigError("a report needs a question with an ideal answer", path="side_by_side")
    sections = []
    if standings := ranked.standings:
        criteria = [name for name in CRITERIA if any(name in it.scores for it in standings)]
        sections.append(
            Section(
                "How the systems rank",
                "Place: the mean place of a system's answers, 1 for the best. The lead in places"
                f" has its 95% interval; {MARK} marks what is more than chance. Scores are the"
                " judge's, from 1 to 10.",
                ("system", "place", f"before {BASELINE}", "best", "of", *criteria),
                [
                    [
                        *build_standing_row(standing),
                        *(
                            f"{standing.scores[name]:.1f}" if name in standing.scores else UNKNOWN
                            for name in criteria
                        ),
                    ]
                    for standing in standings
                ],
            )
        )
    entries = [
        _build_ranked_entry(row, ranking)
        for row in side_by_side.questions
        if (ranking := side_by_side.ranking(row.question)) is not None
    ]
    sections.append(
        Section(
            "Question by question",
            "The answers, what the judge found right (+) and wrong (-) with them, and its reasons.",
            entries=entries,
        )
    )
    return Report(
        headline=describe_ranking(ranked),
        details=ranked.summary(),
        subject=ranked.judge,
        notes=(),
        sections=sections,
        method="The judge ranked all answers to a question at once, in a random order (seed"
        f" {ranked.seed}) and in the reverse of it. It saw letters instead of names. Intervals are"
        " bootstrapped over the questions, and the randomisation tests are corrected after Holm. A"
        " judge is a language model, and may share the tastes of the model that answered. If"
        " passages are judged, measure the retrieval itself with qtm bench.",
    )


def describe_ranking(ranked: RankedSystems) -> str:
    """Return which system answered best, as a sentence."""
    standings = ranked.standings
    if not standings:
        return "There is no ranking."
    best = [standing for standing in standings if standing.rank == standings[0].rank]
    names = figures.join_names(quote_name(standing.system) for standing in best)
    if len(ranked.questions) == 1:
        return f"{names} answered best."
    leader = max(best, key=lambda standing: standing.firsts)
    verb = "gives" if len(best) == 1 else "give"
    total = f"{leader.firsts:,} of {leader.questions:,} questions"
    sentence = f"{names} {verb} the best answer to {total}"
    base = next((standing for standing in standings if standing.system == BASELINE), None)
    if base is None or base in best:
        return f"{sentence}."
    lead = max((it.lead for it in best if it.lead), key=lambda it: it.gain, default=None)
    chance = (
        "" if lead is None or lead.is_significant else f", which {figures.describe_chance(lead)}"
    )
    return f"{sentence}, {quote_name(BASELINE)} to {base.firsts:,}{chance}."


def build_standing_row(standing: Standing) -> list[str]:
    """Return a system's name, mean place, lead over ``off``, first places and questions."""
    lead = standing.lead
    text = UNKNOWN
    if lead is not None:
        mark = MARK if standing.is_ahead else " "
        text = f"{lead.gain:+.2f} [{lead.low:+.2f}, {lead.high:+.2f}]{mark}"
    counts = (str(standing.firsts), str(standing.questions))
    return [standing.system, f"{standing.place:.2f}", text, *counts]


def _build_ranked_entry(row: AskedQuestion, ranking: RankedAnswers) -> Entry:
    outcome = ranking.error or ", ".join(
        f"{standing.rank}. {standing.system}" for standing in ranking.standings
    )
    answers = []
    for standing in ranking.standings:
        answer = row[standing.system].answer
        remarks = [f"+ {text}" for text in dict.fromkeys(filter(None, standing.strengths))]
        remarks += [f"- {text}" for text in dict.fromkeys(filter(None, standing.weaknesses))]
        text = "" if answer is None else shorten_text(answer.text, 2_000)
        label = f"{standing.rank}. {standing.system}"
        answers.append(Item(label, text, shorten_text(" ".join(remarks), 400)))
    lists = {
        "Ideal answer": [Item("", shorten_text(row.question.reference, 2_000))],
        "Answers": answers,
        "Reasons": [
            Item("", shorten_text(reason.text, 400), f"({reason.legend})")
            for reason in ranking.reasons
        ],
    }
    flip = "With the answers in reverse order, another one was best." if ranking.is_flip else ""
    return Entry(
        outcome,
        shorten_text(row.question.text, 400),
        flip,
        tuple((heading, tuple(items)) for heading, items in lists.items() if items),
    )


# --- Markdown and the page ------------------------------------------------------------------------

_MARKUP: Final = re.compile(r"[\\`*\[\]|~#$]|(?<!\w)@|(?<![^\W_])_|_(?![^\W_])")
_BLOCK_START: Final = re.compile(r"^(?:([-+=])|(\d+)([.)]))")
_ADDRESS: Final = re.compile(r"(?i)(https?|ftp|mailto)(:)|(www)(\.)")


def escape_text(text: str, max_length: int) -> str:
    """Return *text* on one line of Markdown, shortened, without markup or links."""
    line = _escape_inline(text, max_length)
    return _BLOCK_START.sub(
        lambda match: f"\\{match[1]}" if match[1] else f"{match[2]}\\{match[3]}", line
    )


def _escape_inline(text: str, max_length: int) -> str:
    line = shorten_text(text, max_length)
    line = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    line = _MARKUP.sub(lambda match: "\\" + match[0], line)
    # GitHub makes links of addresses and of what looks like one.
    return _ADDRESS.sub(lambda match: f"{match[1] or match[3]}&#{ord(match[2] or match[4])};", line)


def _render_section(section: Section) -> Iterator[str]:
    yield f"## {escape_text(section.heading, _LONGEST)}"
    if section.columns:
        titles = list(map(_escape_cell, section.columns))
        lines = [titles, ["---", *["---:"] * (len(titles) - 1)]]
        lines += [[_escape_cell(cell.strip()) for cell in row] for row in section.rows]
        yield "\n".join(f"| {' | '.join(line)} |" for line in lines)
    yield escape_text(section.remark, _LONGEST)
    for entry in section.entries:
        yield f"### {escape_text(entry.question, 400)}"
        yield ". ".join(escape_text(it, 400) for it in (entry.outcome, entry.remark) if it)
        for heading, items in entry.lists:
            texts = ((item.label, item.text, item.remark) for item in items)
            bullets = (
                f"* {' '.join(escape_text(part, _LONGEST) for part in parts if part)}"
                for parts in texts
            )
            yield "\n".join([f"{escape_text(heading, 400)}:", "", *bullets])


def _escape_cell(text: str) -> str:
    return _escape_inline(text, figures.NAME_LENGTH)


@cache
def _load_template_and_style() -> tuple[jinja2.Template, str]:
    environment = build_environment(_read_file, "eval")
    return environment.get_template("page.html.jinja"), _read_file("page.css")


def build_environment(read_template: Callable[[str], str], extra_name: str) -> jinja2.Environment:
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
