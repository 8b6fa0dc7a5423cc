"""The best of a table that meet a filter, whatever measures them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from qtmiddleware.protocols import Record
from qtmiddleware.providers.stores.checks import DIGITS
from qtmiddleware.providers.stores.filters import Condition

_WIDER: Final = 16
"""How many times more is asked for where filter or ties leave too little."""
_FEW: Final = 5_000
"""Ids that are asked for by name; for more it is quicker to look through what is found."""
_REMEMBERED: Final = 32
"""Filters whose ids are kept until the table changes."""


class Looking:
    """Finds the best of a table, exactly: neither a filter nor chance among equals keeps a better one out.

    The table cannot read metadata itself. So what it finds is held against the filter here; where few of the best meet
    it, all metadata is read once, and those few that meet it are asked for by id.
    """

    def __init__(self) -> None:
        self._met: dict[tuple[int, str], list[str] | None] = {}

    def best(
        self,
        table: Any,
        query: Callable[[], Any],
        measure: str,
        score: Callable[[float], float],
        *,
        top_k: int,
        condition: Condition | None,
    ) -> list[Record]:
        """The *top_k* of what *query* makes, by the *score* of their *measure*, those of equal score by id."""
        if top_k < 1:
            return []
        first = limit = 1 + top_k * (1 if condition is None else 4)
        while True:
            if condition is not None and (limit > first or (table.version, condition.key) in self._met):
                version, few = self._few(table, condition)
                if few is not None:
                    asked = query().where(by_id(few), prefilter=True).limit(max(1, len(few)))
                    found = _sorted(_records(asked, measure, score), condition)
                    if table.version == version:
                        break
                    # Somebody wrote in the meantime; what is found from here on is found in one look.
            seen = _records(query().limit(limit), measure, score)
            found = _sorted(seen, condition)[:top_k]
            enough = len(found) == top_k and found[-1]["score"] > seen[-1]["score"]
            if enough or len(seen) < limit:
                break
            limit *= _WIDER
        return [{**one, "metadata": json.loads(one["metadata"])} for one in found[:top_k]]

    def _few(self, table: Any, condition: Condition) -> tuple[int, list[str] | None]:
        """The table's version and the ids that meet *condition* in it; ``None`` where they are many."""
        version: int = table.version
        if (version, condition.key) not in self._met:
            ids = _meeting(table, condition)
            if len(self._met) >= _REMEMBERED:
                self._met.clear()
            self._met[version, condition.key] = ids if len(ids) <= _FEW else None
        # Whoever cleared it in the meantime leaves it to be looked for in the next round.
        return version, self._met.get((version, condition.key))


def by_id(ids: list[str]) -> str:
    """The condition that a passage is one of these, as SQL writes it."""
    if not ids:
        return "false"
    quoted = ("'" + id_.replace("'", "''") + "'" for id_ in ids)
    return f"id IN ({', '.join(quoted)})"


def _meeting(table: Any, condition: Condition) -> list[str]:
    found: list[str] = []
    for batch in table.search().select(["id", "metadata"]).to_batches():
        values = json.loads(f"[{','.join(batch['metadata'].to_pylist())}]")
        ids = batch["id"].to_pylist()
        found.extend(id_ for id_, value in zip(ids, values, strict=True) if condition.meets(value))
    return found


def _sorted(records: list[Record], condition: Condition | None) -> list[Record]:
    met = (one for one in records if condition is None or condition.meets(json.loads(one["metadata"])))
    return sorted(met, key=lambda one: (-one["score"], one["id"]))


def _records(query: Any, measure: str, score: Callable[[float], float]) -> list[Record]:
    """What a query of the table finds, with the metadata as it is stored."""
    found = query.select(["id", "text", "metadata", measure]).to_arrow()
    columns = [found[name].to_pylist() for name in ("id", "text", "metadata", measure)]
    return [
        {"id": id_, "score": round(score(measured), DIGITS), "text": text, "metadata": metadata}
        for id_, text, metadata, measured in zip(*columns, strict=True)
    ]
