"""The fields of a whole list of items, read faster than item by item, with the same outcome.

Field names are looked up once, in the first item, for all items that are like it. Items unlike the
first are read one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import isfinite
from operator import getitem
from typing import Any

from qtmiddleware.config.settings import KeywordEvidenceSettings
from qtmiddleware.retrieval.responses.fields import (
    OBJECT,
    Names,
    find_kind,
    is_number,
    list_own_names,
    to_number,
)
from qtmiddleware.retrieval.responses.items import (
    IDS,
    METADATA,
    NAMES,
    SCORES,
    TEXTS,
    check_item,
    find_text,
    get_attribute,
    read_metadata,
    read_namespace,
    read_own_id,
    read_score,
    read_text,
)

_NAMESPACE = Names(("namespace",))
_NODE = Names(("node",))
_NODE_CONTENT = Names(("_node_content",))


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class _Likeness:
    """The features that items of a list share with the first one.

    Attributes:
        class_: Their class.
        own_names: The keys of a dict, or the names that an object has beside those of its class.
        get: Reads a field of such an item by name.
        ids: The known names of ids that such items have.
        scores: The known names of scores.
        texts: The known names of texts.
        metadata: The known names of metadata.
        has_namespace: Whether they name a namespace.
        is_packed: Whether they have LlamaIndex's ``_node_content``.
    """

    class_: type
    own_names: tuple[Any, ...]
    get: Callable[[Any, str], Any]
    ids: Sequence[str]
    scores: Sequence[str]
    texts: Sequence[str]
    metadata: Sequence[str]
    has_namespace: bool
    is_packed: bool

    def find_alike(self, items: Sequence[Any]) -> list[bool]:
        """Return for each of *items* whether it is like the first."""
        class_, own_names = self.class_, self.own_names
        if class_ is dict:
            keys = dict.fromkeys(own_names).keys()
            return [type(item) is dict and item.keys() == keys for item in items]
        return [type(item) is class_ and list_own_names(item) == own_names for item in items]


def _find_likeness(items: Sequence[Any]) -> _Likeness | None:
    """Return the features of the first of *items*; ``None`` if its class is read item by item."""
    if not items:
        return None
    first = items[0]
    class_: type = type(first)
    if class_ is dict:
        return _build_dict_likeness(tuple(first))
    return (
        _build_object_likeness(class_, list_own_names(first))
        if find_kind(class_) is OBJECT
        else None
    )


@lru_cache(maxsize=256)
def _build_dict_likeness(keys: tuple[Any, ...]) -> _Likeness:
    """Return the likeness of dicts with these *keys*."""
    return _build_likeness(dict, keys, getitem, lambda names: names.pick_keys(keys))


@lru_cache(maxsize=256)
def _build_object_likeness(class_: type, own_names: tuple[str, ...]) -> _Likeness | None:
    """Return the likeness of objects of *class_* with *own_names*; ``None`` for unusual ones."""

    def pick_names(names: Names) -> Sequence[str]:
        return names.pick(class_, own_names)

    # Unusual objects are read by themselves: without a score of its own an object may have a score
    # in its metadata, and a wrapper holds the item inside.
    is_usual = (
        pick_names(SCORES)
        and pick_names(NAMES)
        and not pick_names(_NODE)
        and not issubclass(class_, str | int)
    )
    return _build_likeness(class_, own_names, get_attribute, pick_names) if is_usual else None


def _build_likeness(
    class_: type,
    own_names: tuple[Any, ...],
    get: Callable[[Any, str], Any],
    pick_names: Callable[[Names], Sequence[str]],
) -> _Likeness:
    """Return the likeness whose names *pick_names* finds among the known ones."""
    names = pick_names(IDS), pick_names(SCORES), pick_names(TEXTS), pick_names(METADATA)
    return _Likeness(
        class_,
        own_names,
        get,
        *names,
        bool(pick_names(_NAMESPACE)),
        bool(pick_names(_NODE_CONTENT)),
    )


def read_columns(
    items: Sequence[Any], options: KeywordEvidenceSettings, namespace: str
) -> tuple[list[str | None], list[str], list[float | None]]:
    """Return the ids, namespaces and scores of *items*.

    Each is as `read_own_id`, `read_namespace` and `read_score` return it.

    Args:
        items: The items of one response.
        options: The settings that name the fields of ids, texts and scores.
        namespace: The namespace of items that name none.

    Raises:
        ResponseShapeError: An item is no passage.
    """
    likeness = (
        _find_likeness(items) if options.id_field is None and options.score_field is None else None
    )
    if likeness is None:
        for item in items:
            check_item(item, options.text_field, options.id_field)
        scores = [read_score(item, options.score_field) for item in items]
        ids = [read_own_id(item, options.id_field) for item in items]
        return ids, [read_namespace(item, namespace) for item in items], scores
    alike = likeness.find_alike(items)
    if not all(alike):
        for item, is_alike in zip(items, alike, strict=True):
            if not is_alike:
                check_item(item, options.text_field)
    ids, scores = _read_ids(items, alike, likeness), _read_scores(items, alike, likeness)
    if all(alike) and not likeness.has_namespace:
        return ids, [namespace] * len(items), scores
    return ids, [read_namespace(item, namespace) for item in items], scores


def _read_ids(items: Sequence[Any], alike: Sequence[bool], likeness: _Likeness) -> list[str | None]:
    """Return the id of each of *items*, ``None`` for items without an id."""
    get, names = likeness.get, likeness.ids
    ids: list[str | None] = []
    for item, is_alike in zip(items, alike, strict=True):
        id_ = None if is_alike else read_own_id(item)
        for name in names if is_alike else ():
            if (value := get(item, name)) is not None:
                id_ = str(value) or None
                break
        ids.append(id_)
    return ids


def _read_scores(
    items: Sequence[Any], alike: Sequence[bool], likeness: _Likeness
) -> list[float | None]:
    """Return the score of each of *items*, ``None`` for items without a score."""
    get, names = likeness.get, likeness.scores
    scores: list[float | None] = []
    for item, is_alike in zip(items, alike, strict=True):
        score = None if is_alike else read_score(item)
        for name in names if is_alike else ():
            value = get(item, name)
            if type(value) is float and isfinite(value):
                score = value
                break
            if is_number(value):
                score = to_number(value)
                break
        scores.append(score)
    return scores


def read_texts(items: Sequence[Any], text_field: str | None) -> list[str | None]:
    """Return the passage of each of *items*, as `read_text` does."""
    likeness = _find_likeness(items) if text_field is None else None
    if likeness is None:
        return [read_text(item, text_field) for item in items]
    texts = _find_texts(items, likeness, lambda item: read_text(item, None))
    missing = [place for place, text in enumerate(texts) if text is None]
    if missing:
        # Most databases keep the text in the metadata.
        metadata = _read_metadata([items[place] for place in missing], likeness)
        metadata_likeness = _find_likeness(metadata)
        found_texts = (
            list(map(find_text, metadata))
            if metadata_likeness is None
            else _find_texts(metadata, metadata_likeness, find_text)
        )
        for place, text in zip(missing, found_texts, strict=True):
            texts[place] = text
    return texts


def read_all_metadata(items: Sequence[Any]) -> list[Mapping[str, Any]]:
    """Return the metadata of each of *items*, as `read_metadata` does; empty if unreadable."""
    likeness = _find_likeness(items)
    try:
        return (
            list(map(read_metadata, items)) if likeness is None else _read_metadata(items, likeness)
        )
    except Exception:
        # Reading an item may raise anything. Read each item alone, so that only that one is lost.
        return list(map(_read_metadata_safely, items))


def _read_metadata_safely(item: Any) -> Mapping[str, Any]:
    """Return the metadata of *item*, empty if reading it raises."""
    try:
        return read_metadata(item)
    except Exception:
        return {}


def read_titles(metadata: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the ``title`` in each item's *metadata*, empty if there is none.

    If any metadata cannot be read, all titles are empty.
    """
    try:
        titles = [fields.get("title") for fields in metadata]
    except Exception:
        # Reading a foreign mapping may raise anything, and a title is not worth a failed call.
        return [""] * len(metadata)
    return [title if isinstance(title, str) else "" for title in titles]


def _read_metadata(items: Sequence[Any], likeness: _Likeness) -> list[Mapping[str, Any]]:
    """Return the metadata of each of *items*; those unlike the *likeness* are read alone."""
    names, get = likeness.metadata, likeness.get
    if not names:
        return list(map(read_metadata, items))
    first, metadata = names[0], []
    for item, is_alike in zip(items, likeness.find_alike(items), strict=True):
        fields = get(item, first) if is_alike else None
        metadata.append(fields if type(fields) is dict and fields else read_metadata(item))
    return metadata


def _find_texts(
    holders: Sequence[Any], likeness: _Likeness, find_alone: Callable[[Any], str | None]
) -> list[str | None]:
    """Return the text under a usual name in each of *holders*.

    *find_alone* reads the holders that are unlike the first.
    """
    names, get, is_packed = likeness.texts, likeness.get, likeness.is_packed
    texts: list[str | None] = []
    for holder, is_alike in zip(holders, likeness.find_alike(holders), strict=True):
        text = None
        if not is_alike:
            text = find_alone(holder)
        elif is_packed:
            text = find_text(holder)
        else:
            for name in names:
                value = get(holder, name)
                if isinstance(value, str) and value and not value.isspace():
                    text = value
                    break
        texts.append(text)
    return texts
