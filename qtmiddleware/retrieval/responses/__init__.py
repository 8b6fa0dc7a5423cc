"""Matches out of whatever a wrapped function returns, and back into the very same shape.

Nothing here knows a vendor by name. A response is an envelope, a path of fields that ends in a
list, around items, or keeps them in columns. Envelopes are told apart by the fields they have,
items by what kind of thing they are.
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
    build_like,
    find_kind,
    get_field,
    get_path,
    is_array,
    is_list,
    is_number,
    list_fields,
    remove_field,
    replace_items,
    replace_path,
    shape_error,
    to_number,
)
from qtmiddleware.retrieval.responses.items import (
    NAMES,
    SCORES,
    describe_missing_text,
    estimate_chars,
    find_text_field,
    holds_text,
    may_be_passage,
    print_item,
    read_id,
    read_metadata,
    read_score,
    read_text,
    rescore,
    suggest_id_field,
    suggest_score_field,
    to_namespace,
)
from qtmiddleware.retrieval.responses.rows import PlainRow, get_raw, name_places, reads_like_text
from qtmiddleware.types import DEFAULT_NAMESPACE, Key, Ranking, Variant

__all__ = [
    "ADVICE",
    "SearchResult",
    "Shape",
    "describe_missing_text",
    "estimate_chars",
    "find_shape",
    "find_text_field",
    "get_raw",
    "holds_text",
    "list_fields",
    "read_all_metadata",
    "read_id",
    "read_keys_and_scores",
    "read_metadata",
    "read_response",
    "read_score",
    "read_text",
    "read_texts",
    "read_titles",
    "read_usage",
    "remove_field",
    "rescore",
    "suggest_id_field",
    "suggest_score_field",
    "to_number",
    "wait_for_response",
]

_FIELDS: Final = {  # of the columns whose items are named in the plural
    "ids": "id",
    "documents": "document",
    "texts": "text",
    "metadatas": "metadata",
    "distances": "distance",
    "scores": "score",
    "embeddings": "embedding",
    "uris": "uri",
}
_LEADING: Final = (
    "ids",
    "metadatas",
)  # beside these, "documents" is one column of several and no list of items
_NO_COLUMN: Final = "included"  # Chroma's list of the columns that were asked for
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
"""Names that other things have too, such as the other columns of Chroma's results."""

_ENVELOPES: Final = (*_KNOWN_ENVELOPES, *_GENERAL_ENVELOPES)
_PATHS: Final = {name: tuple(name.split(".")) for name in _ENVELOPES}

_USUAL: Final = KeywordEvidenceSettings()


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Shape:
    """How to read one kind of response and write it back; a caller may give the shape only they know.

    *items* returns the items of a response in the backend's order, the very objects, each of a kind
    that is known in
    lists: a mapping, an ``(id, score)`` pair, a document, an object with an id, a string. *rebuild*
    returns a response like the given one, which stays as it is, with other items: any number of
    them in any order, those of other responses of the same function and rescored ones among them.
    *name* says for people what kind of response it is.
    """

    items: Callable[[Any], Sequence[Any]]
    rebuild: Callable[[Any, Sequence[Any]], Any]
    name: str = "a shape of your own, by read= and write="


@dataclass(eq=False, repr=False, slots=True)
class SearchResult:
    """One variant's response, read."""

    ranking: Ranking
    shape: Shape
    response: Any


def read_response(
    variant: Variant,
    response: Any,
    custom: Shape | None = None,
    *,
    options: KeywordEvidenceSettings = _USUAL,
    initial: Mapping[str, Ranking] | None = None,
) -> SearchResult:
    """Read *response*, by the *custom* shape if there is one; raises `ResponseShapeError` for an unknown shape.

    *options* name the fields of ids, texts and scores. *initial* are the lists that the search
    merged.
    """
    shape = custom or find_shape(response, options)
    items = shape.items(response)
    if not is_list(items):
        raise shape_error(items, "read= must return a list of items, not")
    items = name_places(items, (options.id_field, options.text_field, options.score_field))
    keys, scores = read_keys_and_scores(response, items, options)
    return SearchResult(Ranking(variant, keys, scores, items, initial or {}), shape, response)


def read_keys_and_scores(
    response: Any, items: Sequence[Any], options: KeywordEvidenceSettings = _USUAL
) -> tuple[list[Key], list[float | None]]:
    """Returns what makes each item a passage of its own, ``(namespace, id)``, and its score.

    An item's own namespace goes before the response's. Where there is no id, NUL and the text stand
    in. An id that only names the document is followed by NUL and the text, so that two chunks of
    one document stay two. Raises `ResponseShapeError` for an item that is no passage.
    """
    outer = (
        DEFAULT_NAMESPACE
        if type(response) is list
        else to_namespace(get_field(response, "namespace"))
    )
    ids, namespaces, scores = read_columns(items, options, outer)
    if None not in ids and PlainRow not in set(map(type, items)):
        return list(zip(namespaces, ids, strict=True)), scores  # type: ignore[arg-type]
    keys: list[Key] = []
    for item, id_, namespace in zip(items, ids, namespaces, strict=True):
        if type(item) is PlainRow and options.id_field is None:
            keys.append((outer, item.key))
            continue
        keys.append((namespace, _build_id(item, options) if id_ is None else id_))
    return keys, scores


def _build_id(item: Any, options: KeywordEvidenceSettings) -> str:
    text = read_text(item, options.text_field) or (options.text_field and read_text(item, None))
    return f"{read_id(item, options.id_field) or ''}\0{text or print_item(item)}"


def find_shape(response: Any, options: KeywordEvidenceSettings = _USUAL) -> Shape:
    """Returns the shape of *response*; ``None`` is an empty response, and stays ``None`` as long as it has no items.

    Raises `ResponseShapeError` naming the type where no list of matches can be read out of it.
    """
    if type(response) is list or type(response) is tuple:
        return _find_list_shape(response)
    if _is_record(response) and len(response) == 2 and (shape := _find_parallel_shape(response, 0)):
        return shape
    if (path := _find_envelope(response, options)) is not None:
        _check_other_columns(response, path)
        return _find_parallel_shape(response, path[0]) or _build_envelope_shape(path)
    if response is None:
        return Shape(lambda _: (), lambda _, items: list(items) or None, "None")
    if _has_columns(response):
        _split_columns(response)
        return Shape(_read_columns, _write_columns, "columns, as Chroma's")
    if _is_data_frame(response):
        return Shape(
            _read_frame, partial(_write_frame, options.score_field), "the rows of a data frame"
        )
    if isinstance(response, str):
        mend = f"return the list of passages and join it later, or {ADVICE}"
        raise ResponseShapeError(
            f"the response must be a list of passages, not one str; {mend}", shape="str"
        )
    if isinstance(response, Coroutine):
        raise ResponseShapeError(
            "the response must be awaited; wrap the function with kind='async'", shape="coroutine"
        )
    if not is_list(response) or _is_record(response):
        raise shape_error(response, "no list of matches was found in a response of type")
    return _find_list_shape(response)


def _find_envelope(response: Any, options: KeywordEvidenceSettings) -> tuple[str, ...] | None:
    """Returns the path of the list of passages in *response*, ``None`` if no name leads to one.

    The first name counts whose list holds passages or nothing at all. A list of other things counts
    only under a known name, and only if there is no better one; so does ``None``.
    """
    others: list[tuple[str, ...]] = []
    for name in _KNOWN_ENVELOPES:
        items = _probe(response, _PATHS[name])
        if name == "documents" and _has_columns(response):
            continue
        if is_list(items) and _holds_passages(items, options):
            return _PATHS[name]
        if items is None or is_list(items):
            others.append(_PATHS[name])
    for name in () if _is_container(response) else _GENERAL_ENVELOPES:
        items = _probe(response, _PATHS[name])
        if is_list(items) and _holds_passages(items, options):
            return _PATHS[name]
    return next(iter(others), None)


def _is_container(response: Any) -> bool:
    """Whether *response* is one of the kinds that hold passages without a name."""
    if response is None or hasattr(type(response), "__array__") or _has_columns(response):
        return True
    return is_list(response) and not _is_record(response)


def _check_other_columns(response: Any, path: tuple[str, ...]) -> None:
    """Raises `ResponseShapeError` if passages in another order would no longer stand beside what belongs to them.

    That may be any list as long as theirs if they are texts, and else a list of numbers.
    """
    items = get_path(response, path)
    if len(path) > 1 or not items:
        return
    for name, value in (
        response if isinstance(response, Mapping) else list_fields(response)
    ).items():
        if name == path[0] or name in _NUMBERS or not is_list(value) or len(value) != len(items):
            continue
        if isinstance(items[0], str) or all(map(is_number, value)):
            raise shape_error(
                response, f"another list may run parallel to {path[0]!r} in a response of type"
            )


def _probe(response: Any, path: tuple[str, ...]) -> Any:
    """What stands at the end of *path*, `ABSENT` if nothing does; a property may raise."""
    try:
        return get_path(response, path)
    except Exception:
        return ABSENT


def _holds_passages(items: Sequence[Any], options: KeywordEvidenceSettings) -> bool:
    """Whether *items* are passages, by the first of them; an empty list holds nothing else."""
    if not len(items) or isinstance(items[0], str):
        return not len(items) or any(
            isinstance(item, str) and reads_like_text(item) for item in items
        )
    try:
        return may_be_passage(name_places(items)[0], options.text_field, options.id_field)
    except Exception:  # an item may raise at whatever is read of it
        return False


def _is_record(response: Any) -> bool:
    """Whether *response* is one named tuple or row, the values of which are no list of passages."""
    return find_kind(type(response)) in (NAMED, ROW)


def _find_list_shape(response: Sequence[Any]) -> Shape:
    if (
        len(response) == 2
        and isinstance(response, (list, tuple))
        and (shape := _find_parallel_shape(response, 0))
    ):
        return shape
    return _build_envelope_shape(())


# --- the items in one list ------------------------------------------------------------------------


@cache
def _build_envelope_shape(path: tuple[str, ...]) -> Shape:
    """The shape whose items lie at the end of *path*, or are the response itself where it is empty."""

    def read(response: Any) -> Sequence[Any]:
        items = get_path(response, path)
        if items is None or items is ABSENT:
            return ()
        return items if isinstance(items, (list, Sequence)) else list(items)

    name = f"the list in {'.'.join(path)!r}" if path else "a list"
    return Shape(read, lambda response, items: replace_items(response, path, items), name)


# --- a list of passages and a list of their scores; an item is the pair of both -------------------


def _find_parallel_shape(response: Any, name: str | int) -> Shape | None:
    """Returns the shape of a *response* whose field *name* holds passages and another one their scores, or ``None``."""
    for scores in (1,) if name == 0 else _NUMBERS:
        if (numbers := get_field(response, scores)) is not ABSENT and _are_parallel(
            get_field(response, name), numbers
        ):
            read, write = partial(_read_pairs, name, scores), partial(_write_pairs, name, scores)
            return Shape(read, write, "passages and their scores side by side")
    return None


def _are_parallel(passages: Any, numbers: Any) -> bool:
    if not is_list(passages) or not (is_list(numbers) or is_array(numbers)):
        return False
    if len(passages) != len(numbers) or (is_array(numbers) and numbers.ndim != 1):
        return False
    return all(map(is_number, numbers)) and not any(map(is_number, passages))


def _read_pairs(name: str | int, scores: str | int, response: Any) -> Sequence[Any]:
    numbers = get_field(response, scores)
    return list(
        zip(
            get_field(response, name),
            numbers.tolist() if is_array(numbers) else numbers,
            strict=True,
        )
    )


def _write_pairs(name: str | int, scores: str | int, response: Any, items: Sequence[Any]) -> Any:
    response = replace_items(response, (name,), [passage for passage, _ in items])
    return replace_items(response, (scores,), [score for _, score in items])


# --- a mapping of columns, each a list or, as for a query of several texts, a list with one list in
# it ----------------


def _has_columns(response: Any) -> bool:
    """Whether *response* is a mapping that keeps ids or metadata in columns, as Chroma's results do."""
    return isinstance(response, Mapping) and any(is_list(response.get(name)) for name in _LEADING)


def _read_columns(response: Any) -> Sequence[Any]:
    """Each item as a dict with the columns' values under singular names."""
    columns, _ = _split_columns(response)
    names = [_FIELDS.get(name, name) for name in columns]
    return [dict(zip(names, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _write_columns(response: Any, items: Sequence[Any]) -> Any:
    """Columns that are ``None`` stay so."""
    columns, is_nested = _split_columns(response)
    for name, column in columns.items():
        values = build_like(column, [item.get(_FIELDS.get(name, name)) for item in items])
        response = replace_path(
            response, (name,), build_like(response[name], [values]) if is_nested else values
        )
    return response


def _split_columns(response: Any) -> tuple[dict[str, Any], bool]:
    """The columns by name, and whether each lies inside a list of its own."""
    first = next(it for name in _LEADING if is_list(it := response.get(name)))
    is_nested = len(first) > 0 and is_list(first[0])
    if is_nested and len(first) > 1:
        raise shape_error(
            response, "the results of several queries were found in a response of type"
        )
    count = len(first[0] if is_nested else first)
    columns = {}
    for name, outer in response.items():
        column: Any = outer
        if is_nested:
            column = outer[0] if is_list(outer) and len(outer) == 1 else None
        if (is_list(column) or is_array(column)) and len(column) == count and name != _NO_COLUMN:
            columns[name] = column
        elif name in _FIELDS and outer is not None:
            raise shape_error(
                response, f"{name!r} must be as long as the other columns in a response of type"
            )
    return columns, is_nested


# --- a pandas data frame --------------------------------------------------------------------------


class _Row(dict[Any, Any]):
    """One row of a data frame: the columns' values by name, ``None`` for what is missing, and where the row lies."""

    __slots__ = ("frame", "place")

    frame: Any
    place: int


def _is_data_frame(response: Any) -> bool:
    """Whether *response* has rows and named columns, one of which tells passages apart."""
    kind = type(response)
    if not (hasattr(kind, "iloc") and hasattr(kind, "columns") and response.columns.is_unique):
        return False
    if not len(response) or any(
        name in NAMES for name in (*response.columns, *response.index.names)
    ):
        return True
    return any(isinstance(value, str) for value in response.iloc[0])


def _read_frame(response: Any) -> Sequence[Any]:
    """The rows; a level of the index is a column for the reading where it is named like an id."""
    known = response.astype(object).where(response.notna(), None)
    rows = [_Row(fields) for fields in known.to_dict("records")]
    levels = [
        name for name in response.index.names if name in NAMES and name not in response.columns
    ]
    for level in levels:
        for row, label in zip(rows, response.index.get_level_values(level).tolist(), strict=True):
            row[level] = label
    for place, row in enumerate(rows):
        row.frame, row.place = response, place
    return rows


def _write_frame(score_field: str | None, response: Any, items: Sequence[_Row]) -> Any:
    if all(row.frame is response for row in items):
        frame = response.iloc[[row.place for row in items]]
    else:
        frame = _join_rows(response, items)
    for name in SCORES if score_field is None else (score_field,):
        if name in frame.columns:
            before, after = frame[name].tolist(), [row.get(name) for row in items]
            if any(is_number(new) and new != old for new, old in zip(after, before, strict=True)):
                frame = frame.assign(**{name: _build_column(after, frame[name].dtype)})
    frame.attrs = dict(response.attrs)
    return frame


def _join_rows(response: Any, rows: Sequence[_Row]) -> Any:
    """The *rows* of several frames as one like *response*, in the types of its columns as far as they can hold them."""
    like_this = response if len(response) else rows[0].frame
    names = response.columns if len(response.columns) else like_this.columns
    frames = {id(row.frame): row.frame for row in rows}
    columns = {}
    for name in names:
        known = {
            key: frame[name].tolist() for key, frame in frames.items() if name in frame.columns
        }
        values = [
            known[id(row.frame)][row.place] if id(row.frame) in known else None for row in rows
        ]
        columns[name] = _build_column(
            values, like_this[name].dtype if name in like_this.columns else object
        )
    labels = [row.frame.index[[row.place]] for row in rows]
    frame = type(response)(columns, index=labels[0].append(labels[1:]))
    frame.columns = names
    return frame


def _build_column(values: Sequence[Any], dtype: Any) -> Any:
    """*values* in a column of *dtype*, or of the type they need where that would change them."""
    import pandas as pd  # where a data frame came from, it is loaded

    try:
        column = pd.Series(values, dtype=dtype)
        if column.notna().sum() == pd.Series(values, dtype=object).notna().sum():
            return column.array
    except (TypeError, ValueError, OverflowError):
        pass
    return pd.Series(values).array


def read_usage(response: Any) -> float | None:
    """Returns the read units that *response* says its search used, as Pinecone's do; ``None`` where it says nothing."""
    if type(response) is list or type(response) is tuple:
        return None
    try:
        usage = get_field(response, "usage")
        if usage is ABSENT or usage is None:
            return None
        units = [to_number(get_field(usage, name)) for name in ("read_units", "readUnits")]
    except (
        Exception
    ):  # a response may raise at whatever is read of it, and this is no reason to lose it
        return None
    return next(
        (int(it) if it.is_integer() else it for it in units if it is not None and it >= 0), None
    )


# --- results that are still to come ---------------------------------------------------------------


def wait_for_response(response: Any) -> Any:
    """Returns what *response* stands for: waits for a thread pool's result or future; anything else is unchanged.

    Raises what the call raised. An awaitable is left to those who can await it.
    """
    kind = type(response)
    if hasattr(kind, "__await__"):
        return response
    if _has_methods(kind, ("result", "done", "add_done_callback")):
        return response.result()
    return (
        response.get() if _has_methods(kind, ("get", "ready", "wait", "successful")) else response
    )


def _has_methods(kind: type, names: tuple[str, ...]) -> bool:
    return all(callable(getattr(kind, name, None)) for name in names)
