"""A Pinecone index that embeds texts by itself."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Final

from qtmiddleware.errors import StoreError
from qtmiddleware.protocols import Filter, Passage, Record
from qtmiddleware.providers.stores.pinecone.base import WRITING, PineconeBase
from qtmiddleware.providers.stores.pinecone.calls import PATIENCE
from qtmiddleware.providers.stores.pinecone.failures import status_of
from qtmiddleware.providers.stores.pinecone.records import (
    FRAME_BYTES,
    MOST_MATCHES,
    MOST_TEXTS,
    Row,
    as_record,
    as_sent,
    checked_fields,
    in_order,
    plain_text,
)


class PineconeTextStore(PineconeBase):
    """Keeps passages in a Pinecone index with integrated embedding, dense or sparse; it is searched by text.

    *index* is an index of the ``pinecone`` client; *text_field* is the field its ``field_map`` names. *namespace*
    ``""`` and ``"__default__"`` are the same. Vectors that come with passages are ignored. The limits are those of
    `PineconeStore`; a request takes 96 passages. Raises `StoreError`, and `InvalidQuery` for an
    impossible filter.
    """

    embeds: Final = True
    _most = MOST_TEXTS

    def __init__(
        self,
        index: Any,
        *,
        namespace: str = "",
        text_field: str = "text",
        timeout_seconds: float = PATIENCE,
        opened: ExitStack | None = None,
    ) -> None:
        super().__init__(
            index,
            embedding_model="",
            dimension=0,
            # Here the client takes no empty name.
            namespace=namespace or "__default__",
            text_field=text_field,
            timeout_seconds=timeout_seconds,
            opened=opened,
        )

    def search(self, query: Sequence[float] | str, top_k: int, *, filter: Filter | None = None) -> list[Record]:  # noqa: A002
        """The passages nearest to the text *query* that meet *filter*, best first; at most 10,000."""
        if not isinstance(query, str):
            raise StoreError("this index embeds by itself: search it by the query's text")
        self._about.look()
        if top_k < 1 or not query.strip():
            return []
        asked: dict[str, Any] = {"inputs": {"text": plain_text(query)}, "top_k": min(top_k, MOST_MATCHES)}
        if condition := as_sent(filter):
            asked["filter"] = condition
        answer = self._asked("search", "searched", namespace=self._namespace, query=asked)
        hits = answer.result.hits
        return in_order([as_record(_id(hit), _score(hit), hit["fields"], self._text_field) for hit in hits])

    def _row(self, passage: Passage, vector: Sequence[float]) -> Row:  # noqa: ARG002
        fields, size = checked_fields(passage, self._text_field, reserved=("id", "_id"))
        return Row(passage, {"_id": passage.id, **fields}, size + len(passage.id) + FRAME_BYTES)

    def _send(self, batch: list[Row]) -> None:
        records = [row.record for row in batch]
        self._asked("upsert_records", WRITING, records=records, namespace=self._namespace)

    def _put_note(self, namespace: str, id_: str, metadata: dict[str, Any]) -> None:
        note = {"_id": id_, self._text_field: "about this index", **metadata}
        self._asked("upsert_records", WRITING, records=[note], namespace=namespace)

    def _asked(self, method: str, doing: str, **arguments: Any) -> Any:
        """What *method* of the index returns; a refusal says what it mostly comes of."""
        try:
            return self._calls(method, doing, **arguments)
        except StoreError as error:
            if error.__cause__ is None or status_of(error.__cause__) != 400:
                raise
            raise StoreError(
                f"{error}. Is it an index that embeds texts itself (store.integrated), and is {self._text_field!r} "
                "the field it takes them from (store.textField)?"
            ) from error.__cause__


# Older clients know the underscored names alone, newer ones prefer the plain.


def _id(hit: Any) -> str:
    return str(getattr(hit, "id", None) or hit["_id"])


def _score(hit: Any) -> float:
    score = getattr(hit, "score", None)
    return float(hit["_score"] if score is None else score)
