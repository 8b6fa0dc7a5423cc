"""Read the ids, scores, texts and metadata of many items at once.

The results are the same as if each item were read separately. Reading many items at once is
faster, because field names are looked up only once, in the first item. Items with other fields than
the first item are read one by one.
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
    convert_to_float,
    find_kind,
    is_number,
    list_instance_names,
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
    read_passage_id,
    read_score,
    read_text,
)

_NAMESPACE = Names(("namespace",))
_NODE = Names(("node",))
_NODE_CONTENT = Names(("_node_content",))


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class _Layout:
    """The class and the field names of an item. Items with equal layouts are read in one way.

    Attributes:
        class_: The class of the items.
        instance_names: The keys of a dict, or the names of an object's instance attributes.
        get: Returns the value of a field. Takes an item and the field's name.
        ids: The names of the items' id fields, in order of preference.
        scores: The names of the items' score fields, in order of preference.
        texts: The names of the items' text fields, in order of preference.
        metadata: The names of the items' metadata fields, in order of preference.
        has_namespace: Whether the items have a field ``namespace``.
        is_packed: Whether the items have LlamaIndex's field ``_node_content``.
    """

    class_: type
    instance_names: tuple[Any, ...]
    get: Callable[[Any, str], Any]
    ids: Sequence[str]
    scores: Sequence[str]
    texts: Sequence[str]
    metadata: Sequence[str]
    has_namespace: bool
    is_packed: bool

    def list_layout_matches(self, items: Sequence[Any]) -> list[bool]:
        """Return, for each item, whether it has this layout."""
        class_, instance_names = self.class_, self.instance_names
        if class_ is dict:
            keys = dict.fromkeys(instance_names).keys()
            return [type(item) is dict and item.keys() == keys for item in items]
        return [
            type(item) is class_ and list_instance_names(item) == instance_names for item in items
        ]


def _find_layout(items: Sequence[Any]) -> _Layout | None:
    """Return the layout of the first item; ``None`` if *items* must be read one by one."""
    if not items:
        return None
    first = items[0]
    class_: type = type(first)
    if class_ is dict:
        return _build_dict_layout(tuple(first))
    return (
        _build_object_layout(class_, list_instance_names(first))
        if find_kind(class_) is OBJECT
        else None
    )


@lru_cache(maxsize=256)
def _build_dict_layout(keys: tuple[Any, ...]) -> _Layout:
    """Return the layout of dicts with these *keys*."""
    return _build_layout(dict, keys, getitem, lambda names: names.pick_keys(keys))


@lru_cache(maxsize=256)
def _build_object_layout(class_: type, instance_names: tuple[str, ...]) -> _Layout | None:
    """Return the layout of objects of *class_* with the instance attributes *instance_names*.

    Returns ``None`` for objects that must be read one by one: objects without a score field,
    objects that wrap an item, strings and numbers.
    """

    def pick_names(names: Names) -> Sequence[str]:
        return names.pick(class_, instance_names)

    # Unusual objects are read one by one. An object without a score field may have a score in its
    # metadata, and the fields of a wrapper are in another object.
    is_usual = (
        pick_names(SCORES)
        and pick_names(NAMES)
        and not pick_names(_NODE)
        and not issubclass(class_, str | int)
    )
    return _build_layout(class_, instance_names, get_attribute, pick_names) if is_usual else None


def _build_layout(
    class_: type,
    instance_names: tuple[Any, ...],
    get: Callable[[Any, str], Any],
    pick_names: Callable[[Names], Sequence[str]],
) -> _Layout:
    """Return a layout with the field names that *pick_names* selects.

    Args:
        class_: The class of the items.
        instance_names: The keys of a dict, or the names of an object's instance attributes.
        get: Returns the value of an item's field, given the item and the field's name.
        pick_names: Takes alternative names, and returns the names that the items have.
    """
    names = pick_names(IDS), pick_names(SCORES), pick_names(TEXTS), pick_names(METADATA)
    return _Layout(
        class_,
        instance_names,
        get,
        *names,
        bool(pick_names(_NAMESPACE)),
        bool(pick_names(_NODE_CONTENT)),
    )


def read_columns(
    items: Sequence[Any], options: KeywordEvidenceSettings, namespace: str
) -> tuple[list[str | None], list[str], list[float | None]]:
    """Return three lists: the ids, the namespaces and the scores of *items*.

    The results are those of `read_passage_id`, `read_namespace` and `read_score` for each item.

    Args:
        items: The items of one response.
        options: The settings that name the fields of ids, texts and scores.
        namespace: The default for items without a namespace.

    Raises:
        ResponseShapeError: An item is not a passage.
    """
    layout = (
        _find_layout(items) if options.id_field is None and options.score_field is None else None
    )
    if layout is None:
        for item in items:
            check_item(item, options.text_field, options.id_field)
        scores = [read_score(item, options.score_field) for item in items]
        ids = [read_passage_id(item, options.id_field) for item in items]
        return ids, [read_namespace(item, namespace) for item in items], scores
    layout_matches = layout.list_layout_matches(items)
    if not all(layout_matches):
        for item, fits in zip(items, layout_matches, strict=True):
            if not fits:
                check_item(item, options.text_field)
    ids, scores = (
        _read_ids(items, layout_matches, layout),
        _read_scores(items, layout_matches, layout),
    )
    if all(layout_matches) and not layout.has_namespace:
        return ids, [namespace] * len(items), scores
    return ids, [read_namespace(item, namespace) for item in items], scores


def _read_ids(
    items: Sequence[Any], layout_matches: Sequence[bool], layout: _Layout
) -> list[str | None]:
    """Return the id of each item; ``None`` for an item without an id.

    *layout_matches* says for each item whether it has this *layout*.
    """
    get, names = layout.get, layout.ids
    ids: list[str | None] = []
    for item, fits in zip(items, layout_matches, strict=True):
        id_ = None if fits else read_passage_id(item)
        for name in names if fits else ():
            if (value := get(item, name)) is not None:
                id_ = str(value) or None
                break
        ids.append(id_)
    return ids


def _read_scores(
    items: Sequence[Any], layout_matches: Sequence[bool], layout: _Layout
) -> list[float | None]:
    """Return the score of each item; ``None`` for an item without a score.

    *layout_matches* says for each item whether it has this *layout*.
    """
    get, names = layout.get, layout.scores
    scores: list[float | None] = []
    for item, fits in zip(items, layout_matches, strict=True):
        score = None if fits else read_score(item)
        for name in names if fits else ():
            value = get(item, name)
            if type(value) is float and isfinite(value):
                score = value
                break
            if is_number(value):
                score = convert_to_float(value)
                break
        scores.append(score)
    return scores


def read_texts(items: Sequence[Any], text_field: str | None) -> list[str | None]:
    """Return the text of each item; ``None`` for an item without text.

    *text_field* names the field of the text. If it is ``None``, the usual names are tried.
    """
    layout = _find_layout(items) if text_field is None else None
    if layout is None:
        return [read_text(item, text_field) for item in items]
    texts = _find_texts(items, layout, lambda item: read_text(item, None))
    missing = [place for place, text in enumerate(texts) if text is None]
    if missing:
        # Most databases keep the text in the metadata.
        metadata = _read_metadata([items[place] for place in missing], layout)
        metadata_layout = _find_layout(metadata)
        found_texts = (
            list(map(find_text, metadata))
            if metadata_layout is None
            else _find_texts(metadata, metadata_layout, find_text)
        )
        for place, text in zip(missing, found_texts, strict=True):
            texts[place] = text
    return texts


def read_all_metadata(items: Sequence[Any]) -> list[Mapping[str, Any]]:
    """Return the metadata of each item; an empty mapping for an item that cannot be read."""
    layout = _find_layout(items)
    try:
        return list(map(read_metadata, items)) if layout is None else _read_metadata(items, layout)
    except Exception:
        # Reading an item may raise anything. Read one by one, only this item loses its metadata.
        return list(map(_read_metadata_safely, items))


def _read_metadata_safely(item: Any) -> Mapping[str, Any]:
    """Return the metadata of *item*; an empty mapping if *item* cannot be read."""
    try:
        return read_metadata(item)
    except Exception:
        return {}


def read_titles(metadata: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the ``title`` in each item's *metadata*; ``""`` for an item without a title.

    If the metadata of any item cannot be read, all titles are empty.
    """
    try:
        titles = [fields.get("title") for fields in metadata]
    except Exception:
        # The mappings come from the user's code, so reading them may raise anything. A call must
        # not fail for a title.
        return [""] * len(metadata)
    return [title if isinstance(title, str) else "" for title in titles]


def _read_metadata(items: Sequence[Any], layout: _Layout) -> list[Mapping[str, Any]]:
    """Return the metadata of each item. Items without this *layout* are read one by one."""
    names, get = layout.metadata, layout.get
    if not names:
        return list(map(read_metadata, items))
    first, metadata = names[0], []
    for item, fits in zip(items, layout.list_layout_matches(items), strict=True):
        fields = get(item, first) if fits else None
        metadata.append(fields if type(fields) is dict and fields else read_metadata(item))
    return metadata


def _find_texts(
    holders: Sequence[Any], layout: _Layout, read_single_text: Callable[[Any], str | None]
) -> list[str | None]:
    """Return the text of each object in *holders*, which are items or their metadata.

    *read_single_text* reads the text of an object that does not have this *layout*. The text is
    ``None`` if no usual field of the object contains a text.
    """
    names, get, is_packed = layout.texts, layout.get, layout.is_packed
    texts: list[str | None] = []
    for holder, fits in zip(holders, layout.list_layout_matches(holders), strict=True):
        text = None
        if not fits:
            text = read_single_text(holder)
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
