"""Read the passages of any response, and rebuild the response with other passages.

Responses are recognised by the names of their fields, not by their library. The items of a response
are either in a list inside the response, such as ``result.hits``, or in parallel columns.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Final

from qtmiddleware.config.settings import KeywordEvidenceSettings
from qtmiddleware.errors import ResponseShapeError
from qtmiddleware.retrieval.responses.columns import (
    read_all_metadata,
    read_columns,
    read_texts,
    read_titles,
)
from qtmiddleware.retrieval.responses.fields import (
    ABSENT,
    ADVICE,
    NAMED,
    ROW,
    build_shape_error,
    build_similar_container,
    convert_to_float,
    find_kind,
    get_field,
    get_nested_value,
    is_array,
    is_list,
    is_number,
    list_fields,
    remove_field,
    replace_nested_items,
    replace_nested_value,
)
from qtmiddleware.retrieval.responses.items import (
    build_item_fingerprint,
    can_be_passage,
    convert_to_namespace,
    describe_missing_text_and_fix,
    estimate_chars,
    find_text_field,
    has_text,
    read_id,
    read_metadata,
    read_score,
    read_text,
    replace_score,
    suggest_id_field,
    suggest_score_field,
)
from qtmiddleware.retrieval.responses.rows import (
    PlainRow,
    convert_to_plain_rows,
    get_raw_item,
    is_probably_text,
)
from qtmiddleware.types import DEFAULT_NAMESPACE, Key, Ranking, Variant

__all__ = [
    "ADVICE",
    "SearchResult",
    "Shape",
    "convert_to_float",
    "describe_missing_text_and_fix",
    "estimate_chars",
    "find_shape",
    "find_text_field",
    "get_raw_item",
    "get_read_units",
    "has_text",
    "read_all_metadata",
    "read_id",
    "read_keys_and_scores",
    "read_metadata",
    "read_response",
    "read_score",
    "read_text",
    "read_texts",
    "read_titles",
    "remove_field",
    "replace_score",
    "suggest_id_field",
    "suggest_score_field",
    "wait_for_response",
]

# The name of an item's field, for each column with a name in the plural.
_FIELDS: Final = {
    "ids": "id",
    "documents": "document",
    "texts": "text",
    "metadatas": "metadata",
    "distances": "distance",
    "scores": "score",
    "embeddings": "embedding",
    "uris": "uri",
}
# If a response has one of these columns, its "documents" is a column too and not a list of items.
_LEADING: Final = ("ids", "metadatas")
# Chroma's list of the columns that were asked for.
_NO_COLUMN: Final = "included"
_NUMBERS: Final = ("scores", "distances", "similarities")
_KNOWN_ENVELOPES: Final = (
    *("matches", "result.hits", "documents", "results", "hits.hits", "hits", "points", "objects"),
)
_GENERAL_ENVELOPES: Final = (
    *(
        "docs",
        "response.docs",
        "chunks",
        "passages",
        "source_documents",
        "nodes",
        "records",
        "rows",
    ),
    *("items", "value", "data", "result"),
)
"""Names that are also used for other data. They count only if the list contains passages."""

_ENVELOPES: Final = (*_KNOWN_ENVELOPES, *_GENERAL_ENVELOPES)
_PATHS: Final = {name: tuple(name.split(".")) for name in _ENVELOPES}

_USUAL: Final = KeywordEvidenceSettings()


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Shape:
    """Functions to read the items of a response, and to rebuild the response with other items.

    Attributes:
        items: Returns the items of a response in the backend's order, without copying them. Items
            may be mappings, ``(id, score)`` pairs, documents, objects with an id, or strings.
        rebuild: Returns a copy of a response with other items. It accepts any number of items in
            any order. They may have new scores, and they may come from other responses of the same
            function.
        name: A description of the structure, such as "a list".
    """

    items: Callable[[Any], Sequence[Any]]
    rebuild: Callable[[Any, Sequence[Any]], Any]
    name: str = "a shape of your own, by read= and write="


@dataclass(eq=False, repr=False, slots=True)
class SearchResult:
    """The response to the search for one variant, and the ranking read from it.

    Attributes:
        ranking: The keys, scores and items of the passages, best first.
        shape: The object that reads passages from the response and rebuilds the response.
        response: The response as the function returned it.
    """

    ranking: Ranking
    shape: Shape
    response: Any


def read_response(
    variant: Variant,
    response: Any,
    custom_shape: Shape | None = None,
    *,
    options: KeywordEvidenceSettings = _USUAL,
    initial_rankings: Mapping[str, Ranking] | None = None,
) -> SearchResult:
    """Return the ranking in *response*, together with the response and its shape.

    Args:
        variant: The variant that was searched.
        response: The function's response.
        custom_shape: The user's functions to read and rebuild responses; ``None`` to detect the
            structure.
        options: The settings that name the fields of ids, texts and scores.
        initial_rankings: The rankings that the search itself merged, by name.

    Raises:
        ResponseShapeError: The response cannot be read.
    """
    shape = custom_shape or find_shape(response, options)
    items = shape.items(response)
    if not is_list(items):
        raise build_shape_error(items, "read= must return a list of items, not")
    items = convert_to_plain_rows(
        items, (options.id_field, options.text_field, options.score_field)
    )
    keys, scores = read_keys_and_scores(response, items, options)
    return SearchResult(
        Ranking(variant, keys, scores, items, initial_rankings or {}), shape, response
    )


def read_keys_and_scores(
    response: Any, items: Sequence[Any], options: KeywordEvidenceSettings = _USUAL
) -> tuple[list[Key], list[float | None]]:
    """Return two lists: the key ``(namespace, id)`` of each item, and the score of each item.

    Items with equal keys are the same passage.

    - The namespace is read from the item or, if it has none, from the response.
    - If an item has no id, its text replaces the id, after a NUL character.
    - If an item has only the id of its document, a NUL character and the text are added to this id,
      so that chunks of one document have different keys.

    Raises:
        ResponseShapeError: An item is not a passage.
    """
    response_namespace = (
        DEFAULT_NAMESPACE
        if type(response) is list
        else convert_to_namespace(get_field(response, "namespace"))
    )
    ids, namespaces, scores = read_columns(items, options, response_namespace)
    # Most responses have an id for every item and need no further work.
    if None not in ids and PlainRow not in set(map(type, items)):
        return list(zip(namespaces, ids, strict=True)), scores  # type: ignore[arg-type]
    keys: list[Key] = []
    for item, id_, namespace in zip(items, ids, namespaces, strict=True):
        if type(item) is PlainRow and options.id_field is None:
            keys.append((response_namespace, item.key))
            continue
        keys.append((namespace, _build_substitute_id(item, options) if id_ is None else id_))
    return keys, scores


def _build_substitute_id(item: Any, options: KeywordEvidenceSettings) -> str:
    """Build an id for *item*, which has no id of its own.

    The id consists of the document's id (or nothing), a NUL character, and the item's text. If
    there is no text, the item's other fields are used instead.
    """
    text = read_text(item, options.text_field) or (options.text_field and read_text(item, None))
    return f"{read_id(item, options.id_field) or ''}\0{text or build_item_fingerprint(item)}"


def find_shape(response: Any, options: KeywordEvidenceSettings = _USUAL) -> Shape:
    """Detect the structure of *response*, and return the functions that read and rebuild it.

    ``None`` is read as an empty response.

    Raises:
        ResponseShapeError: *response* contains no readable list of passages. The error names its
            type.
    """
    if type(response) is list or type(response) is tuple:
        return _find_list_shape(response)
    if (
        _is_row_or_named_tuple(response)
        and len(response) == 2
        and (shape := _find_parallel_shape(response, 0))
    ):
        return shape
    if (path := _find_list_path(response, options)) is not None:
        _reject_parallel_lists(response, path)
        return _find_parallel_shape(response, path[0]) or _build_list_shape(path)
    if response is None:
        return Shape(lambda _: (), lambda _, items: list(items) or None, "None")
    if _has_columns(response):
        # Raises now if the columns cannot be read, so that callers get the error from here.
        _get_columns_and_nesting(response)
        return Shape(_read_columns, _replace_columns, "columns, as Chroma's")
    if isinstance(response, str):
        advice = f"return the list of passages and join it later, or {ADVICE}"
        raise ResponseShapeError(
            f"the response must be a list of passages, not one str; {advice}", shape="str"
        )
    if isinstance(response, Coroutine):
        raise ResponseShapeError(
            "the response must be awaited; wrap the function with kind='async'", shape="coroutine"
        )
    if not is_list(response) or _is_row_or_named_tuple(response):
        raise build_shape_error(response, "no list of matches was found in a response of type")
    return _find_list_shape(response)


def _find_list_path(response: Any, options: KeywordEvidenceSettings) -> tuple[str, ...] | None:
    """Return the path of field names to the list of passages in *response*.

    The usual names are tried in order. The first name with a list that is empty or contains
    passages is used. If there is none, the first usual name with ``None`` or with another list is
    used. Returns ``None`` if there is no such name either.
    """
    fallbacks: list[tuple[str, ...]] = []
    for name in _KNOWN_ENVELOPES:
        items = _get_nested_value_safely(response, _PATHS[name])
        # Chroma's column of texts has the same name as other libraries' list of passages.
        if name == "documents" and _has_columns(response):
            continue
        if is_list(items) and _is_probably_passage_list(items, options):
            return _PATHS[name]
        if items is None or is_list(items):
            fallbacks.append(_PATHS[name])
    for name in () if _is_list_or_columns(response) else _GENERAL_ENVELOPES:
        items = _get_nested_value_safely(response, _PATHS[name])
        if is_list(items) and _is_probably_passage_list(items, options):
            return _PATHS[name]
    return next(iter(fallbacks), None)


def _is_list_or_columns(response: Any) -> bool:
    """Return whether *response* is ``None``, a list, an array or a mapping of columns.

    An attribute of such an object, such as ``data``, is not a list of passages.
    """
    if response is None or hasattr(type(response), "__array__") or _has_columns(response):
        return True
    return is_list(response) and not _is_row_or_named_tuple(response)


def _reject_parallel_lists(response: Any, path: tuple[str, ...]) -> None:
    """Raise `ResponseShapeError` if a second list in *response* may describe the passages.

    After reranking, the second list would no longer match the passages at *path*. A list counts as
    such a list if it is as long as the list of passages, and if the passages are texts or the list
    contains only numbers.
    """
    items = get_nested_value(response, path)
    if len(path) > 1 or not items:
        return
    for name, value in (
        response if isinstance(response, Mapping) else list_fields(response)
    ).items():
        if name == path[0] or name in _NUMBERS or not is_list(value) or len(value) != len(items):
            continue
        if isinstance(items[0], str) or all(map(is_number, value)):
            raise build_shape_error(
                response, f"another list may run parallel to {path[0]!r} in a response of type"
            )


def _get_nested_value_safely(response: Any, path: tuple[str, ...]) -> Any:
    """Return the value at *path* in *response*; `ABSENT` if it is missing or unreadable."""
    try:
        return get_nested_value(response, path)
    except Exception:
        return ABSENT


def _is_probably_passage_list(items: Sequence[Any], options: KeywordEvidenceSettings) -> bool:
    """Return whether *items* is empty or looks like a list of passages."""
    if not len(items) or isinstance(items[0], str):
        return not len(items) or any(
            isinstance(item, str) and is_probably_text(item) for item in items
        )
    try:
        return can_be_passage(convert_to_plain_rows(items)[0], options.text_field, options.id_field)
    except Exception:
        # Items come from the user's code, so reading them may raise anything.
        return False


def _is_row_or_named_tuple(response: Any) -> bool:
    """Return whether *response* is a named tuple or a database row. Neither counts as a list."""
    return find_kind(type(response)) in (NAMED, ROW)


def _find_list_shape(response: Sequence[Any]) -> Shape:
    """Return the shape of *response*, which is a list of passages or a (passages, scores) pair."""
    if (
        len(response) == 2
        and isinstance(response, (list, tuple))
        and (shape := _find_parallel_shape(response, 0))
    ):
        return shape
    return _build_list_shape(())


# --- the items in one list ------------------------------------------------------------------------


@cache
def _build_list_shape(path: tuple[str, ...]) -> Shape:
    """Return the shape of responses that have their items in the list at *path*.

    If *path* is empty, the response itself is the list.
    """

    def read_items(response: Any) -> Sequence[Any]:
        items = get_nested_value(response, path)
        if items is None or items is ABSENT:
            return ()
        return items if isinstance(items, (list, Sequence)) else list(items)

    name = f"the list in {'.'.join(path)!r}" if path else "a list"
    return Shape(
        read_items, lambda response, items: replace_nested_items(response, path, items), name
    )


# --- a list of passages and a list of their scores; an item is the pair of both -------------------


def _find_parallel_shape(response: Any, passages_field: str | int) -> Shape | None:
    """Return the shape of a response with passages in one field and their scores in another.

    *passages_field* contains the passages. Returns ``None`` if no other field contains one number
    for each passage.
    """
    for scores_field in (1,) if passages_field == 0 else _NUMBERS:
        if (numbers := get_field(response, scores_field)) is not ABSENT and _are_parallel(
            get_field(response, passages_field), numbers
        ):
            read, write = (
                partial(_read_pairs, passages_field, scores_field),
                partial(_replace_pairs, passages_field, scores_field),
            )
            return Shape(read, write, "passages and their scores side by side")
    return None


def _are_parallel(passages: Any, numbers: Any) -> bool:
    """Return whether *numbers* may be the scores of *passages*, with one number per passage."""
    if not is_list(passages) or not (is_list(numbers) or is_array(numbers)):
        return False
    if len(passages) != len(numbers) or (is_array(numbers) and numbers.ndim != 1):
        return False
    return all(map(is_number, numbers)) and not any(map(is_number, passages))


def _read_pairs(passages_field: str | int, scores_field: str | int, response: Any) -> Sequence[Any]:
    """Return (passage, score) pairs from two fields of *response*."""
    numbers = get_field(response, scores_field)
    return list(
        zip(
            get_field(response, passages_field),
            numbers.tolist() if is_array(numbers) else numbers,
            strict=True,
        )
    )


def _replace_pairs(
    passages_field: str | int, scores_field: str | int, response: Any, items: Sequence[Any]
) -> Any:
    """Return a copy of *response* with the (passage, score) pairs *items* in its two fields."""
    response = replace_nested_items(response, (passages_field,), [passage for passage, _ in items])
    return replace_nested_items(response, (scores_field,), [score for _, score in items])


# --- a mapping of columns, each a list, or a list with one list for each text of the query --------


def _has_columns(response: Any) -> bool:
    """Return whether *response* is a mapping with a column of ids or metadata, as in Chroma."""
    return isinstance(response, Mapping) and any(is_list(response.get(name)) for name in _LEADING)


def _read_columns(response: Any) -> Sequence[Any]:
    """Return the items of *response*, a mapping of columns, as one dict per item.

    The keys are the singular names of the columns: ``ids`` becomes ``id``.
    """
    columns, _ = _get_columns_and_nesting(response)
    names = [_FIELDS.get(name, name) for name in columns]
    return [dict(zip(names, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _replace_columns(response: Any, items: Sequence[Any]) -> Any:
    """Return a copy of *response*, a mapping of columns, with *items* in its columns.

    Columns that are ``None`` stay ``None``.
    """
    columns, is_nested = _get_columns_and_nesting(response)
    for name, column in columns.items():
        values = build_similar_container(
            column, [item.get(_FIELDS.get(name, name)) for item in items]
        )
        response = replace_nested_value(
            response,
            (name,),
            build_similar_container(response[name], [values]) if is_nested else values,
        )
    return response


def _get_columns_and_nesting(response: Any) -> tuple[dict[str, Any], bool]:
    """Return (columns, is_nested) for *response*, a mapping of columns.

    The columns are returned by name. If each column is inside another list, is_nested is true.

    Raises:
        ResponseShapeError: *response* has the results of several queries, or columns of different
            lengths.
    """
    leading_column = next(values for name in _LEADING if is_list(values := response.get(name)))
    is_nested = len(leading_column) > 0 and is_list(leading_column[0])
    if is_nested and len(leading_column) > 1:
        raise build_shape_error(
            response, "the results of several queries were found in a response of type"
        )
    count = len(leading_column[0] if is_nested else leading_column)
    columns = {}
    for name, value in response.items():
        column: Any = value
        if is_nested:
            column = value[0] if is_list(value) and len(value) == 1 else None
        if (is_list(column) or is_array(column)) and len(column) == count and name != _NO_COLUMN:
            columns[name] = column
        elif name in _FIELDS and value is not None:
            raise build_shape_error(
                response, f"{name!r} must be as long as the other columns in a response of type"
            )
    return columns, is_nested


def get_read_units(response: Any) -> float | None:
    """Return the read units that a response of Pinecone reports.

    Returns ``None`` if the response reports none.
    """
    if type(response) is list or type(response) is tuple:
        return None
    try:
        usage = get_field(response, "usage")
        if usage is ABSENT or usage is None:
            return None
        units = [convert_to_float(get_field(usage, name)) for name in ("read_units", "readUnits")]
    except Exception:
        # Reading a response may raise anything. Missing read units are no reason to lose it.
        return None
    return next(
        (
            int(count) if count.is_integer() else count
            for count in units
            if count is not None and count >= 0
        ),
        None,
    )


# --- results that are still to come ---------------------------------------------------------------


def wait_for_response(response: Any) -> Any:
    """Return the result of *response* if it is a future or an async result of a pool.

    The function waits until this result is there. Any other response is returned unchanged. This
    includes awaitables, because the caller can await them.

    Raises:
        Exception: The error of the future.
    """
    class_ = type(response)
    if hasattr(class_, "__await__"):
        return response
    if _has_methods(class_, ("result", "done", "add_done_callback")):
        return response.result()
    return (
        response.get() if _has_methods(class_, ("get", "ready", "wait", "successful")) else response
    )


def _has_methods(class_: type, method_names: tuple[str, ...]) -> bool:
    """Return whether *class_* has all methods in *method_names*."""
    return all(callable(getattr(class_, name, None)) for name in method_names)
