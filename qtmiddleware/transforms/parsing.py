"""Turn a model's reply into the requested transformation, or raise an error with the reason.

The steps are:

1. Find the answer in the reply, without the model's reasoning.
2. Collect the texts for each field from the answer, which is JSON or plain text.
3. Check each text with the rules.
4. Build the transformation from the texts that pass.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from qtmiddleware.catalogue import STANDALONE, TEXT_FIELDS, Transformation
from qtmiddleware.errors import ModelError
from qtmiddleware.preprocessing.text import normalise_text
from qtmiddleware.protocols import Prompt, Reply, ReplyField
from qtmiddleware.transforms.chatter import is_error_page, is_noise, is_refusal
from qtmiddleware.transforms.json_reading import (
    JSON_OPENING,
    Cut,
    JsonValue,
    Members,
    find_json,
    read_json_string,
)
from qtmiddleware.transforms.plain_text import (
    ASIDE,
    GENERIC,
    find_field_name,
    read_plain_text,
    split_items,
    strip_item_numbers,
    strip_markup,
)
from qtmiddleware.transforms.reply_rules import (
    MAX_CHARS,
    NONE_NEEDED,
    RULES,
    SAME,
    SAME_AS_QUERY,
    SENTENCE_END,
    check_text,
    is_key_term_field,
    is_sub_query_field,
    is_talk_about_task,
    keep_whole_sentences,
)

READ_CHARS: Final = 65_536
"""The maximum number of characters that are read of a reply."""
MOST_TEXTS: Final = 500
"""The maximum number of texts per field that the rules check."""
_THOUGHT_CHARS: Final = 1_000_000

_MESSAGES: Final = {
    "refused": "the model refused to transform the query",
    "empty": "the model's reply has nothing new to search for",
    "truncated": (
        "the model's reply was cut off before it held anything usable; raise llm.maxTokens"
    ),
    "unparsable": "the model's reply has none of the requested fields",
}
_REFUSAL: Final = "refusal"
_UNKNOWN: Final = "unknown"

_THOUGHT_START: Final = re.compile(
    r"\s*(?:<(?:think|thinking|thought|thoughts|reasoning|scratchpad)>|\[THINK\]|◁think▷|<\|channel\|>\s*analysis)",
    re.IGNORECASE,
)
_THOUGHT_END: Final = re.compile(
    r"</(?:think|thinking|thought|thoughts|reasoning|scratchpad)>|\[/THINK\]|◁/think▷"
    r"|<\|channel\|>\s*final\s*<\|message\|>",
    re.IGNORECASE,
)
# White space is matched only from its beginning. Otherwise a long run would be read again from each
# of its places.
_EDGE: Final = re.compile(r"^(?:\s|<\|\w+\|>|<s>)+|(?<!\s)\s*+(?:(?:<\|\w+\|>|</s>)\s*+){0,16}$")
# The start of a JSON object whose braces are missing.
_JSON_MEMBER: Final = re.compile(r"\s*\"\w{3,40}\"\s*:\s*[\"\[]")
# White space is matched only from its beginning. Otherwise each of its line ends would start to
# read it again.
_ITEM_BELOW: Final = re.compile(r"(?<!\s)[^\S\n]*+\n\s*+(?:\d|[-*•])")
_TEXT_KEY: Final = re.compile(
    r"^(sub_?|search_?|rewritten_?)?(query|question|text|value|content|keyword|term|paraphrase|passage|rewrite|sentence)$",
    re.IGNORECASE,
)
_SCHEMA_KEYS: Final = {"type", "description", "properties", "items", "required"}


@dataclass(slots=True)
class FieldTexts:
    """The texts that a reply has for each field, before the rules check them.

    Attributes:
        texts: The texts by field, the most likely text first.
        named: The fields that the reply names, with or without a text.
        is_refusal: Whether the model refuses the task.
        is_cut: Whether the end of the reply is missing.
        is_empty: Whether the reply has no text, or names a field without a text.
    """

    texts: Mapping[str, list[str]] = field(default_factory=dict)
    named: frozenset[str] = frozenset()
    is_refusal: bool = False
    is_cut: bool = False
    is_empty: bool = False


@dataclass(frozen=True, slots=True)
class _CheckedTexts:
    """The texts of one field that passed the rules, with notes on dropped and changed texts.

    Attributes:
        texts: The texts to search for.
        notes: Notes on the dropped and the changed texts.
        rules: The names of the rules that dropped texts.
    """

    texts: tuple[str, ...]
    notes: tuple[str, ...]
    rules: frozenset[str]


def parse_transformation(prompt: Prompt, reply: Reply) -> Transformation:
    """Return the transformation that *reply* contains.

    The reply may be JSON, broken JSON or plain text. The complete texts of a truncated reply are
    used. Refusals, remarks, blank texts, duplicates and copies of the query are dropped. Reads at
    most 65,536 characters, in linear time.

    Returns a transformation with a note and without texts if the reply only repeats the query or
    says that it needs no sub-queries.

    Args:
        prompt: The prompt that the model answered.
        reply: The model's reply.

    Raises:
        ModelError: The reply has no text to search for. The error's reason is ``refused``,
            ``empty``, ``truncated`` or ``unparsable``.
    """
    text, is_cut = _find_answer_and_is_cut(reply)
    field_texts = _find_texts(prompt, text, is_cut=is_cut)
    checked_texts = {
        field.name: _select_valid_texts(field, field_texts.texts.get(field.name, []), prompt)
        for field in prompt.fields
    }
    notes = [(name, note) for name, checked in checked_texts.items() for note in checked.notes]
    # A field without texts and notes gets a note too, so that every missing text is explained.
    silent = [
        field
        for field in prompt.fields
        if not (checked_texts[field.name].texts or checked_texts[field.name].notes)
    ]
    notes += [(field.name, _describe_missing_texts(field, field_texts)) for field in silent]
    notes += [("reply", "truncated")] if field_texts.is_cut else []
    result = build_transformation(
        {name: checked.texts for name, checked in checked_texts.items()}, notes
    )
    if result.is_empty:
        reason = _find_failure_reason(prompt, field_texts, checked_texts.values(), notes)
        if reason:
            error = ModelError(reason, _build_failure_message(reason, checked_texts.values()))
            error.notes = result.notes
            raise error
    return result


def build_transformation(
    texts_by_field: Mapping[str, Sequence[str]], notes: Iterable[tuple[str, str]]
) -> Transformation:
    """Return a transformation with the given texts and notes.

    Args:
        texts_by_field: The texts of each field. A field with a single text gets the first text.
        notes: Notes on the texts, as (field, note) pairs.
    """
    values: dict[str, Any] = {
        name: tuple(field_texts) if row.shape == "list" else field_texts[0]
        for name, row in TEXT_FIELDS.items()
        if (field_texts := texts_by_field.get(name))
    }
    return Transformation(**values, notes=tuple(notes))


def _find_answer_and_is_cut(reply: Reply) -> tuple[str, bool]:
    """Return the answer in *reply*, without the model's reasoning.

    Returns:
        The answer, at most `READ_CHARS` characters.
        Whether the end of the answer is missing.
    """
    # Other clients may pass on a missing content as ``None``, although the type forbids it.
    text, is_cut = strip_thoughts(reply.text or "")
    # One character more than is read shows that the text is too long.
    text = text[: READ_CHARS + 1]
    # A model may leave out the braces of the object.
    if _JSON_MEMBER.match(text):
        text = f"{{{text}}}"
    is_long = len(text) > READ_CHARS
    # Some clients pass on the whole answer as one JSON string.
    decoded = None if is_long else read_json_string(text)
    return (text[:READ_CHARS] if decoded is None else decoded), is_cut or is_long or reply.truncated


def strip_thoughts(text: str) -> tuple[str, bool]:
    """Return *text* without the model's reasoning before the answer.

    Some models leave out the opening tag of the reasoning, so everything before a closing tag is
    removed. If *text* begins like JSON, the tag may be part of a value, and nothing is removed.
    Reads at most a million characters.

    Returns:
        The answer; ``""`` if *text* ends within the reasoning.
        Whether *text* ends within the reasoning.
    """
    place = 0
    text = text[:_THOUGHT_CHARS]
    while _THOUGHT_START.match(text, place):
        end = _THOUGHT_END.search(text, place)
        if not end:
            return "", True
        place = end.end()
    text = text[place:]
    if not text.lstrip().startswith(("{", "[", '"', "```")):
        end = _THOUGHT_END.search(text)
        text = text[end.end() :] if end else text
    if text and text[0] in "{[" and text[-1] in "}]":
        return text, False
    return _EDGE.sub("", text), False


def _find_texts(prompt: Prompt, text: str, *, is_cut: bool) -> FieldTexts:
    """Return the texts for each field from the JSON in *text* or, without JSON, from its lines."""
    values = find_json(text)
    field_texts = collect_json_texts(values, text, prompt.fields)
    field_texts.is_cut = is_cut or field_texts.is_cut
    field_texts.is_empty = field_texts.is_empty or not text.strip()
    if field_texts.named or field_texts.texts or JSON_OPENING.match(text) or is_error_page(text):
        return field_texts
    return _find_plain_texts(prompt, text, field_texts)


def _find_plain_texts(prompt: Prompt, text: str, json_result: FieldTexts) -> FieldTexts:
    """Return the texts for each field from a reply in plain text.

    Args:
        prompt: The prompt that the model answered.
        text: The answer in the reply.
        json_result: The result of reading *text* as JSON. It has no texts, but its flags are kept.
    """
    # The last line of a truncated reply is incomplete.
    if json_result.is_cut and not SENTENCE_END.search(text.rstrip()[-1:]):
        has_passage = any(field.shape == "passage" for field in prompt.fields)
        text = text.rpartition("\n")[0] or (keep_whole_sentences(text) if has_passage else "")
    opening = next((line for line in text.splitlines() if line.strip()), "")
    # A line of plain text that is longer than any query is an essay or garbage.
    longest = {
        field.name: READ_CHARS if field.shape == "passage" else MAX_CHARS[field.shape]
        for field in prompt.fields
    }
    texts = read_plain_text(text, prompt.fields, prompt.query)
    return replace(
        json_result,
        texts={
            name: [candidate for candidate in candidates if len(candidate) <= longest[name]]
            for name, candidates in texts.items()
        },
        is_refusal=json_result.is_refusal or is_refusal(opening, prompt.query),
        is_empty=json_result.is_empty
        or is_noise(strip_markup(opening, prompt.query), prompt.query),
    )


def collect_json_texts(
    json_values: Sequence[JsonValue], text: str, fields: Sequence[ReplyField]
) -> FieldTexts:
    """Return the texts for *fields* from the *json_values* in *text*.

    - Keys may differ in spelling from the names of the fields.
    - If a list field occurs twice, its lists are joined. For other fields, the texts of the last
      value come first.
    - If no key names the main field, it gets the texts with a general key such as "query" and the
      texts in a list without a key.
    """
    shapes: dict[str, str] = {field.name: field.shape for field in fields}
    texts: dict[str, list[str]] = {}
    named: set[str] = set()
    unassigned: dict[str, list[str]] = {_REFUSAL: [], GENERIC: [], _UNKNOWN: []}
    for json_value in json_values:
        for name, value in _iterate_named_values(
            json_value.value, fields, is_alone=_is_on_own_lines(json_value, text)
        ):
            if name not in shapes:
                unassigned[name] += (
                    [value] if isinstance(value, str) else _collect_strings(value, "list")
                )
                continue
            earlier, strings = texts.get(name, []), _collect_strings(value, shapes[name])
            texts[name] = [*earlier, *strings] if shapes[name] == "list" else [*strings, *earlier]
            # A value that was cut off does not show what the field would have held.
            if not isinstance(value, Cut):
                named.add(name)
    # A single text with an unknown key is probably the answer. Several such texts may be anything.
    main = _find_main_field(fields)
    unnamed = unassigned[GENERIC] or (
        unassigned[_UNKNOWN] if len(unassigned[_UNKNOWN]) == 1 else []
    )
    if main and main.name not in named and unnamed:
        texts[main.name] = unnamed
        named.add(main.name)
    is_empty = any(not texts.get(name) for name in named) or (
        bool(json_values) and not any(json_value.value for json_value in json_values)
    )
    is_cut = any(json_value.is_cut for json_value in json_values)
    return FieldTexts(
        texts,
        frozenset(named),
        is_refusal=bool(unassigned[_REFUSAL]),
        is_cut=is_cut,
        is_empty=is_empty,
    )


def _find_main_field(fields: Sequence[ReplyField]) -> ReplyField | None:
    """Return the main field, which gets the texts without a field name.

    This is the only field besides the standalone question. If there are several, it is the first
    list. Returns ``None`` if none of them is a list.
    """
    candidates = [field for field in fields if field.name != STANDALONE] or list(fields)
    lists = [field for field in candidates if field.shape == "list"]
    return candidates[0] if len(candidates) == 1 else next(iter(lists), None)


def _iterate_named_values(
    value: Any, fields: Sequence[ReplyField], *, is_alone: bool
) -> Iterator[tuple[str, Any]]:
    """Yield a (name, value) pair for each value inside a JSON *value* that may contain texts.

    The name is a field's name, `GENERIC`, ``refusal`` or ``unknown``. If *is_alone* is false, the
    JSON is quoted in a sentence, and `GENERIC` and ``unknown`` values are left out.
    """
    if isinstance(value, Members):
        for key, member in value:
            yield from _iterate_member(key, member, fields, is_alone=is_alone)
    elif isinstance(value, list):
        if is_alone:
            yield GENERIC, [item for item in value if isinstance(item, str)]
        for item in value:
            if not isinstance(item, str):
                yield from _iterate_named_values(item, fields, is_alone=is_alone)


def _iterate_member(
    key: str, value: Any, fields: Sequence[ReplyField], *, is_alone: bool
) -> Iterator[tuple[str, Any]]:
    """Yield a (name, value) pair for each value in one member of a JSON object.

    Like `_iterate_named_values`.
    """
    name = find_field_name(key, fields)
    if name in {field.name for field in fields}:
        yield name, value
    elif name == ASIDE:
        if key.casefold() == _REFUSAL and value:
            yield _REFUSAL, key
    # Some models write the object as a string inside another object.
    elif isinstance(value, str) and value.lstrip().startswith("{"):
        for inner in find_json(value):
            yield from _iterate_named_values(inner.value, fields, is_alone=is_alone)
    elif name == GENERIC and is_alone and not _contains_object(value):
        yield GENERIC, _collect_strings(value, "list")
    elif not isinstance(value, str):
        yield from _iterate_named_values(value, fields, is_alone=is_alone)
    elif is_alone:
        yield _UNKNOWN, value


def _contains_object(value: Any) -> bool:
    """Return whether a JSON *value* is an object or a list that contains an object."""
    return isinstance(value, Members) or (
        isinstance(value, list) and any(isinstance(item, Members) for item in value)
    )


def _collect_strings(json_value: Any, field_shape: str) -> list[str]:
    """Return all texts in *json_value*, including nested values.

    *field_shape* is the shape of the field. Truncated texts are left out, except for ``passage``.
    """
    if isinstance(json_value, Cut):
        return [json_value] if field_shape == "passage" else []
    if isinstance(json_value, str):
        return [json_value]
    if isinstance(json_value, Members):
        return [
            text
            for member in _pick_member_values(json_value)
            for text in _collect_strings(member, field_shape)
        ]
    if isinstance(json_value, list):
        return [text for item in json_value for text in _collect_strings(item, field_shape)]
    return []


def _pick_member_values(members: Members) -> list[Any]:
    """Return the values of an object that a model wrote instead of a text.

    For ``{"query": …, "reason": …}``, returns the first value. For ``{"1": …, "2": …}``, returns
    all values. Returns ``[]`` for an object that repeats the JSON schema.
    """
    if {key for key, _ in members} <= _SCHEMA_KEYS:
        return []
    named = [value for key, value in members if _TEXT_KEY.match(key)]
    return named[:1] or [value for key, value in members if find_field_name(key, ()) != ASIDE]


def _is_on_own_lines(json_value: JsonValue, text: str) -> bool:
    """Return whether *json_value* is on separate lines of *text*.

    A label with a colon, a code fence or punctuation may be on these lines too.
    """
    before = text[text.rfind("\n", 0, json_value.start) + 1 : json_value.start].strip()
    line_end = text.find("\n", json_value.end)
    after = text[json_value.end : line_end if line_end >= 0 else len(text)].strip()
    return (not before or before.endswith((":", "：", "```json", "```"))) and after.strip(
        "`., ;"
    ) == ""


def _select_valid_texts(field: ReplyField, texts: Sequence[str], prompt: Prompt) -> _CheckedTexts:
    """Return those *texts* of *field* that pass the rules, without duplicates.

    The result has no more texts than *field* allows.
    """
    limit = field.max_items if field.shape == "list" else 1
    chosen: dict[str, str] = {}
    notes: list[str] = []
    rules: set[str] = set()
    for text in strip_item_numbers(_split_texts(field, texts, prompt)[:MOST_TEXTS], prompt.query):
        verdict = check_text(text, field, prompt)
        notes.append(verdict.note)
        if verdict.text is None:
            rules.add(verdict.rule)
            continue
        if verdict.key in chosen:
            notes.append("dropped: duplicate")
        elif len(chosen) < limit:
            chosen[verdict.key] = verdict.text
        elif field.shape == "list":
            notes.append("dropped: more than requested")
            break
    # A single sub-query that repeats the query adds nothing.
    if is_sub_query_field(field) and list(chosen) == [normalise_text(prompt.query)]:
        return _CheckedTexts(
            (),
            tuple(filter(None, dict.fromkeys([*notes, SAME]))),
            frozenset(rules | {SAME_AS_QUERY}),
        )
    return _CheckedTexts(
        tuple(chosen.values()), tuple(filter(None, dict.fromkeys(notes))), frozenset(rules)
    )


def _split_texts(field: ReplyField, texts: Sequence[str], prompt: Prompt) -> list[str]:
    """Split texts that contain several items, and return all items.

    A model may write a whole list as one text. Passages are never split.
    """
    whole_texts = list(texts)
    if not whole_texts or field.shape == "passage":
        return whole_texts
    if is_key_term_field(field) and len(whole_texts) == 1:
        parts = [
            part
            for line in split_items(whole_texts[0])
            for part in re.split(r"[,;|、，；\n]", line)
        ]
    elif field.shape == "list" and len(whole_texts) == 1:
        parts = split_items(whole_texts[0])
    else:
        parts = [
            part
            for text in whole_texts
            for part in (split_items(text) if _has_list_items(text) else [text])
        ]
    if parts == whole_texts:
        return whole_texts
    # After a split at its commas, a refusal or remark could not be recognised any more.
    first_text = whole_texts[0]
    is_whole = is_refusal(first_text, prompt.query) or is_talk_about_task(
        strip_markup(first_text, prompt.query), field, prompt
    )
    return whole_texts if is_whole else parts


def _has_list_items(text: str) -> bool:
    """Return whether a line after the first line of *text* begins with a bullet or a digit."""
    return "\n" in text and _ITEM_BELOW.search(text) is not None


def _describe_missing_texts(field: ReplyField, field_texts: FieldTexts) -> str:
    """Return the note on a field without texts: ``none needed`` or ``missing``.

    The note is ``none needed`` if the field may be empty and the reply names the field without a
    text.
    """
    may_be_none = is_sub_query_field(field) and field.min_items == 0
    is_given_empty = field.name in field_texts.named and not field_texts.texts.get(field.name)
    return NONE_NEEDED if may_be_none and is_given_empty else "missing"


def _build_failure_message(reason: str, checked_texts: Iterable[_CheckedTexts]) -> str:
    """Return the error message for a reply without usable texts.

    For ``unparsable``, the message names the rules that dropped texts.
    """
    rules = [rule for rule in RULES if any(rule in checked.rules for checked in checked_texts)]
    if reason != "unparsable" or not rules:
        return _MESSAGES[reason]
    return f"no text of the model's reply can be searched; dropped: {', '.join(rules)}"


def _find_failure_reason(
    prompt: Prompt,
    field_texts: FieldTexts,
    checked_texts: Iterable[_CheckedTexts],
    notes: Sequence[tuple[str, str]],
) -> str:
    """Return the error's reason for a reply without texts; ``""`` if this is not an error.

    A reply is not an error if it only repeats the query or says that no sub-queries are needed.
    """
    rules = frozenset[str]().union(*(checked.rules for checked in checked_texts))
    # The order matters: a refusal or a truncated reply explains why texts are missing.
    if field_texts.is_refusal or "refusal" in rules:
        return "refused"
    if field_texts.is_cut:
        return "truncated"
    main_fields = [field for field in prompt.fields if field.name != STANDALONE]
    is_none_needed = all(map(is_sub_query_field, main_fields)) and any(
        (field.name, NONE_NEEDED) in notes for field in main_fields
    )
    if is_none_needed or {note for _, note in notes} == {SAME}:
        return ""
    return (
        "empty"
        if field_texts.is_empty or not rules.isdisjoint({"no query", SAME_AS_QUERY})
        else "unparsable"
    )
