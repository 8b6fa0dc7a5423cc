"""The laws every case is held against; what is compared is read here by itself, never by the package."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from tests.robustness.faults.cases import Case, Draw
from tests.robustness.faults.expected import expected
from tests.robustness.faults.playing import Limits, Played, Player, Servers
from tests.robustness.faults.world import QUERY, TOP_K, Row

MOST_REPEATS: Final = 3

LATE: Final = "late"
"""Something that had time enough was not answered in it: a failure on a quiet machine, noise on a busy one."""


class Verdict(list[tuple[str, str]]):
    """The laws that were broken, each with what was seen."""

    def check(self, law: str, holds: bool, seen: Any) -> None:
        """Write down that *law* is broken, with what was *seen*, unless it *holds*."""
        if not holds:
            self.append((law, str(seen)))


def judged(case: Case, draw: Draw, played: Played) -> Verdict:
    """Every law that *played* breaks."""
    verdict, wanted = Verdict(), expected(case, draw)
    for complaint in dict.fromkeys(played.watch.complaints):
        # asyncio leaves a socket to the garbage collector that is cancelled in a TLS handshake, with
        # the SDK alone too.
        is_foreign = (
            "unclosed" in complaint and wanted.raises and (case.model, case.way) == ("tls", "async")
        )
        verdict.check("left behind", is_foreign, complaint)
    if wanted.raises:
        _judge_error(verdict, played, draw)
        return verdict
    if played.error is not None or played.plain_error is not None:
        verdict.append(("nothing is raised", repr(played.error or played.plain_error)))
        return verdict
    retrieval = played.retrieval
    query = retrieval.original_query
    verdict.check("original query", query.encode() == QUERY.encode(), ascii(query))
    _judge_account(verdict, played, case, draw)
    verdict.check("type", type(retrieval.response) is type(played.plain), type(retrieval.response))
    if type(retrieval.response) is type(played.plain):
        _judge_rows(verdict, played, alone=not wanted.came and not draw.evidence)
    return verdict


def _judge_error(verdict: Verdict, played: Played, draw: Draw) -> None:
    """The very object where the function is ours; the SDK makes a new one for each request."""
    plain, error = played.plain_error, played.error
    same = plain is not None and type(error) is type(plain) and str(error) == str(plain)
    same = same and (error is plain or draw.backend != "function")
    verdict.check("the function's own error", same, f"{error!r} in place of {plain!r}")


def _judge_account(verdict: Verdict, played: Played, case: Case, draw: Draw) -> None:
    wanted, retrieval = expected(case, draw), played.retrieval
    told = [(it.stage, it.reason) for it in retrieval.degradations]
    meant = Counter(
        (stage, wanted.own if reason in wanted.excused else reason) for stage, reason in told
    )
    is_late = any(reason == "timeout" for _, reason in meant - wanted.troubles)
    seen = f"{dict(meant)} in place of {dict(wanted.troubles)}"
    verdict.check(LATE if is_late else "degradations", meant == wanted.troubles, seen)
    texts = [(it.kind, it.text) for it in retrieval.variants[1:]]
    kinds = [it.kind for it in retrieval.variants]
    verdict.check(LATE if is_late else "variants", sorted(texts) == sorted(wanted.variants), kinds)
    verdict.check("status", (retrieval.status == "full") == (not told), retrieval.status)


def _judge_rows(verdict: Verdict, played: Played, *, alone: bool) -> None:
    """Never worse than the plain function, and the very same where no variant contributed."""
    got, plain = read(played.retrieval.response), read(played.plain)
    seen = f"{_told(got)} in place of {_told(plain)}"
    if alone:
        verdict.check("same as plain", repr(got) == repr(plain), seen)
    verdict.check("as many as plain", len(got) >= min(len(plain), TOP_K), seen)
    ids = [(it.id, repr(it.score)) for it in played.retrieval.matches]
    same = [name for name, _ in ids] == [row[0] for row in got]
    verdict.check("matches are the response", same, ids)


def _told(found: list[Row]) -> str:
    return ", ".join(f"{name} {score}" for name, score, _ in found) or "nothing"


def read(response: Any) -> list[Row]:
    """The id, score and text of everything in *response*, one of the SDK's own classes."""
    if hasattr(response, "result"):
        return [(hit.id, hit.score, hit.fields["text"]) for hit in response.result.hits]
    return [(it.id, it.score, it.metadata["text"]) for it in response.matches]


def try_case(case: Case, seed: int, servers: Servers, limits: Limits) -> Verdict:
    """*case* judged; repeated, up to `MOST_REPEATS` times and slower each time, if something was only late.

    So a slow package is told from a busy machine.
    """
    draw, count = case.drawn(seed), 1
    while True:
        verdict = judged(case, draw, Player(case, draw, servers, limits).play())
        is_settled = not verdict or {law for law, _ in verdict} != {LATE}
        if is_settled or count > MOST_REPEATS:
            return verdict
        limits, count = limits.slower(), count + 1
