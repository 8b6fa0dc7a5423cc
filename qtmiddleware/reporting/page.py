"""The comparison as one page of HTML that needs nothing but itself."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from hashlib import sha256
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from qtmiddleware.errors import MissingExtra
from qtmiddleware.evaluation import DEEP, PRIMARY, Comparison, Dataset, SystemScore
from qtmiddleware.evaluation.statistics import RESAMPLES
from qtmiddleware.reporting import figures, table, verdicts
from qtmiddleware.reporting.bars import FONT as BAR_FONT
from qtmiddleware.reporting.bars import bars, kind
from qtmiddleware.reporting.gains import Gains, counts, gains
from qtmiddleware.reporting.hurt import Hurt, Hurting
from qtmiddleware.reporting.scales import is_known
from qtmiddleware.reporting.scatter import FONT as POINT_FONT
from qtmiddleware.reporting.scatter import RADIUS, Scatter, scatter
from qtmiddleware.reporting.wording import short

if TYPE_CHECKING:
    import jinja2
    from markupsafe import Markup

WIDE: Final = 920.0
NARROW: Final = 340.0
_HALF: Final = (450.0, 360.0)
_PHONE: Final = (NARROW, 340.0)
_QUESTION_LENGTH: Final = 200
_POLICY: Final = (
    "default-src 'none'; script-src 'sha256-{script}'; style-src 'sha256-{style}'; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)


@dataclass(frozen=True, slots=True)
class Price:
    """What quality is drawn against: in words, and each system's chart in both widths."""

    name: str
    unit: str
    charts: tuple[Scatter, Scatter]


@dataclass(frozen=True, slots=True)
class Detail:
    """One system looked at closely."""

    place: int
    score: SystemScore
    counts: tuple[int, int, int]
    charts: tuple[Gains, Gains]
    longest_ms: float
    worst: tuple[Hurt, ...]

    def part(self, ms: float) -> float:
        """How much of the longest time *ms* is, in hundredths."""
        return round(min(100.0, max(0.0, 100.0 * ms / self.longest_ms)), 2) if is_known(ms) else 0.0


def page(comparison: Comparison, data: Dataset | None = None) -> str:
    """The whole comparison as one HTML page with everything in it: verdict, charts, tables, worst questions, method.

    It loads nothing, forbids itself to, and can be read without its script. *data* gives it the words of questions and
    passages and marks the relevant ones; without it, a question's words are known where a system told what it searched.
    Raises `MissingExtra` without jinja2.
    """
    template, raw = _template()
    hurting = Hurting(comparison, data)
    details = _details(comparison, hurting)
    style, script = _file("page.css") + _choices(details), _file("page.js")
    return template.render(
        comparison=comparison,
        sentences=verdicts.sentences(comparison),
        notes=verdicts.notes(comparison, data),
        kind=partial(kind, comparison),
        best=verdicts.foremost(comparison),
        has_winner=verdicts.winner(comparison) is not None,
        bars=(bars(comparison, WIDE), bars(comparison, NARROW, is_narrow=True)),
        prices=_prices(comparison),
        columns=table.columns(comparison),
        gain=table.GAIN,
        details=details,
        walked=_walked(comparison, hurting),
        figures=figures,
        fonts={"bar": BAR_FONT, "point": POINT_FONT, "radius": RADIUS},
        primary=PRIMARY,
        deep=DEEP[0],
        resamples=RESAMPLES,
        policy=_POLICY.format(script=_digest(script), style=_digest(style)),
        style=raw(style),
        script=raw(script),
    )


@cache
def _template() -> tuple[jinja2.Template, type[Markup]]:
    """The page's template, compiled, and what marks our own text as needing no escape."""
    try:
        import jinja2
        from markupsafe import Markup
    except ImportError as error:
        raise MissingExtra("jinja2", "eval") from error
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_file),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(typeset=_typeset, short=short)
    return environment.get_template("page.html.jinja"), Markup


def _file(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    """By what the page's policy knows its own script and style; any other does not run."""
    return b64encode(sha256(text.encode()).digest()).decode()


def _typeset(number: str) -> str:
    """The text of a number with a real minus."""
    return number.replace("-", "\N{MINUS SIGN}")


def _choices(details: tuple[Detail, ...]) -> str:
    """The rules by which the chosen system's panel is the one that is seen, with no script needed."""
    return "".join(f".detail:has(#system-{one.place}:checked) #panel-{one.place}{{display:block}}\n" for one in details)


def _prices(comparison: Comparison) -> tuple[Price, ...]:
    """What quality is drawn against: money, or model calls where none is known, and time."""
    found = []
    if any(is_known(score.cost_usd) and score.cost_usd for score in comparison.systems):
        money = "US dollars per 1,000 questions"
        found.append(_price(comparison, "price", money, lambda score: score.usd_per_thousand, figures.dollars))
    elif any(score.llm_calls for score in comparison.systems):
        calls = "model calls per question"
        found.append(_price(comparison, "calls", calls, lambda score: score.llm_calls / len(score.runs), figures.rate))
    time = "milliseconds added (median)"
    return (*found, _price(comparison, "time", time, lambda score: score.added_ms.p50, figures.duration))


def _price(
    comparison: Comparison,
    name: str,
    unit: str,
    price: Callable[[SystemScore], float | None],
    told: Callable[[float | None], str],
) -> Price:
    wide, narrow = (scatter(comparison, price, told, width, height) for width, height in (_HALF, _PHONE))
    return Price(name, unit, (wide, narrow))


def _details(comparison: Comparison, hurting: Hurting) -> tuple[Detail, ...]:
    """Every challenger looked at closely, all on one scale."""
    every = [gain for score in comparison.challengers for gain in score.gains.values()]
    reach = min(every, default=0.0), max(every, default=0.0)
    return tuple(
        Detail(
            place=place,
            score=score,
            counts=counts(score),
            charts=(gains(score, reach, WIDE, 260.0), gains(score, reach, NARROW, 220.0)),
            longest_ms=max((it.p95 for it in score.stages_ms.values() if is_known(it.p95)), default=0.0) or 1.0,
            worst=hurting.of(score),
        )
        for place, score in enumerate(comparison.challengers)
    )


def _walked(comparison: Comparison, hurting: Hurting) -> dict[str, Any]:
    """What the page's script tells of single questions: their words, and the measure before and after."""
    base = comparison[comparison.baseline].per_query.values[PRIMARY]
    return {
        "questions": [short(hurting.text(id_) or id_, _QUESTION_LENGTH) for id_ in base],
        "before": [_rounded(found) for found in base.values()],
        "gains": [[_rounded(score.gains.get(id_, 0.0)) for id_ in base] for score in comparison.challengers],
    }


def _rounded(number: float) -> float:
    return round(number, 3) if is_known(number) else 0.0
