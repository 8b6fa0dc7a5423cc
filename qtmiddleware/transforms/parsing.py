"""A model's reply, turned into the transformation that was asked for, or into the reason why there is none.

One way: take the answer out of the reply, find the texts for each field in its JSON or its plain
text, judge each text by the rules, and make the transformation of those that pass.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from qtmiddleware.catalogue import STANDALONE, TEXT_FIELDS, Transformation
from qtmiddleware.errors import ModelError
from qtmiddleware.preprocessing.text import normalise
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
    find_field,
    read_plain_text,
    split_items,
    strip_marks,
    strip_numbers,
)
from qtmiddleware.transforms.reply_rules import (
    MAX_CHARS,
    NONE_NEEDED,
    RULES,
    SAME,
    SAME_AS_QUERY,
    SENTENCE_END,
    holds_parts,
    holds_terms,
    is_talk,
    judge,
    keep_whole_sentences,
)

READ_CHARS: Final = 65_536
"""How much of a reply is looked at."""
MOST_TEXTS: Final = 500
"""How many texts of one field are looked at."""
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
# White space is looked through from its beginning alone, or a run of it would be read from each of
# its places.
_EDGE: Final = re.compile(r"^(?:\s|<\|\w+\|>|<s>)+|(?<!\s)\s*+(?:(?:<\|\w+\|>|</s>)\s*+){0,16}$")
# The inside of an object whose braces are missing.
_JSON_MEMBER: Final = re.compile(r"\s*\"\w{3,40}\"\s*:\s*[\"\[]")
# White space is looked through from its beginning alone: each of its line ends would read it again.
_ITEM_BELOW: Final = re.compile(r"(?<!\s)[^\S\n]*+\n\s*+(?:\d|[-*•])")
_TEXT_KEY: Final = re.compile(
    r"^(sub_?|search_?|rewritten_?)?(query|question|text|value|content|keyword|term|paraphrase|passage|rewrite|sentence)$",
    re.IGNORECASE,
)
_LABEL_KEYS: Final = ("field", "label", "name", "key")
_SCHEMA_KEYS: Final = {"type", "description", "properties", "items", "required"}


@dataclass(slots=True)
class FieldTexts:
    """The texts a reply gives for each field, the likeliest first, before any of them is judged.

    *named* are the fields that it names at all. It *is_refusal* where it says that it will not do
    the task, *is_cut* where its end is missing, and *is_empty* where it, or one of the fields it
    names, holds nothing.
    """

    texts: Mapping[str, list[str]] = field(default_factory=dict)
    named: frozenset[str] = frozenset()
    is_refusal: bool = False
    is_cut: bool = False
    is_empty: bool = False


@dataclass(frozen=True, slots=True)
class _Choice:
    """What one field is given: *texts* to search for, *notes* on the others and the *rules* that rejected them."""

    texts: tuple[str, ...]
    notes: tuple[str, ...]
    rules: frozenset[str]


def parse(prompt: Prompt, reply: Reply) -> Transformation:
    """Returns what *reply* gives for the fields of *prompt*.

    Reads JSON, whole or broken, and plain text; keeps what is complete. No refusal, remark, blank,
    duplicate or copy of the query becomes a text to search for. At most 65,536 characters are read,
    in linear time. A reply that says there is nothing to split, or that gives the query back as it
    is, gives an empty transformation with a note.

    Raises `ModelError` with the reason ``refused``, ``empty``, ``truncated`` or ``unparsable``.
    """
    text, is_cut = _find_answer(reply)
    found = _find_texts(prompt, text, is_cut=is_cut)
    choices = {
        it.name: _choose_texts(it, found.texts.get(it.name, []), prompt) for it in prompt.fields
    }
    notes = [(name, note) for name, choice in choices.items() for note in choice.notes]
    silent = [it for it in prompt.fields if not (choices[it.name].texts or choices[it.name].notes)]
    notes += [(it.name, _note_missing(it, found)) for it in silent]
    notes += [("reply", "truncated")] if found.is_cut else []
    result = fill({name: choice.texts for name, choice in choices.items()}, notes)
    if result.is_empty:
        reason = _explain_nothing(prompt, found, choices.values(), notes)
        if reason:
            error = ModelError(reason, _describe_nothing(reason, choices.values()))
            error.notes = result.notes
            raise error
    return result


def fill(texts: Mapping[str, Sequence[str]], notes: Iterable[tuple[str, str]]) -> Transformation:
    """Returns the transformation that holds *texts*, by field; of those for a single text, the first."""
    given: dict[str, Any] = {
        name: tuple(found) if row.shape == "list" else found[0]
        for name, row in TEXT_FIELDS.items()
        if (found := texts.get(name))
    }
    return Transformation(**given, notes=tuple(notes))


def _find_answer(reply: Reply) -> tuple[str, bool]:
    """The part of a reply that is its answer, and whether its end is missing."""
    # Clients of other making pass on a missing content as it is, whatever the type says.
    text, is_cut = strip_thoughts(reply.text or "")
    text = text[: READ_CHARS + 1]
    if _JSON_MEMBER.match(text):
        text = f"{{{text}}}"
    is_long = len(text) > READ_CHARS
    decoded = None if is_long else read_json_string(text)
    return (text[:READ_CHARS] if decoded is None else decoded), is_cut or is_long or reply.truncated


def strip_thoughts(text: str) -> tuple[str, bool]:
    """Returns the answer in *text* without what a reasoning model says first, and whether *text* ended before that did.

    Some models leave out the opening mark; a reply that begins as JSON is taken as the answer even
    so, for the mark may stand in one of its texts. Of an enormous reply only the beginning is
    looked at.
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
    """The texts for each field in the JSON of *text*, or in its plain text where it holds none for them."""
    values = find_json(text)
    found = pick_texts(values, text, prompt.fields)
    found.is_cut = is_cut or found.is_cut
    found.is_empty = found.is_empty or not text.strip()
    if found.named or found.texts or JSON_OPENING.match(text) or is_error_page(text):
        return found
    return _find_plain_texts(prompt, text, found)


def _find_plain_texts(prompt: Prompt, text: str, found: FieldTexts) -> FieldTexts:
    if found.is_cut and not SENTENCE_END.search(text.rstrip()[-1:]):
        has_passage = any(it.shape == "passage" for it in prompt.fields)
        text = text.rpartition("\n")[0] or (keep_whole_sentences(text) if has_passage else "")
    opening = next((line for line in text.splitlines() if line.strip()), "")
    # One line of plain text that is longer than any query is an essay or debris.
    longest = {
        it.name: READ_CHARS if it.shape == "passage" else MAX_CHARS[it.shape]
        for it in prompt.fields
    }
    texts = read_plain_text(text, prompt.fields, prompt.query)
    return replace(
        found,
        texts={
            name: [one for one in given if len(one) <= longest[name]]
            for name, given in texts.items()
        },
        is_refusal=found.is_refusal or is_refusal(opening, prompt.query),
        is_empty=found.is_empty or is_noise(strip_marks(opening, prompt.query), prompt.query),
    )


def pick_texts(values: Sequence[JsonValue], text: str, fields: Sequence[ReplyField]) -> FieldTexts:
    """Returns what the JSON *values* in *text* give for *fields*, under whatever keys and in whatever shape.

    A field that is given twice has its last value first, lists are joined. Texts under a name that
    says nothing ("query", a bare list) go to the one field that was asked for, if nothing is there
    by its own name.
    """
    shapes: dict[str, str] = {it.name: it.shape for it in fields}
    texts: dict[str, list[str]] = {}
    named: set[str] = set()
    spare: dict[str, list[str]] = {_REFUSAL: [], GENERIC: [], _UNKNOWN: []}
    for one in values:
        for name, value in _walk(one.value, fields, is_alone=_stands_alone(one, text)):
            if name not in shapes:
                spare[name] += (
                    [value] if isinstance(value, str) else _collect_strings(value, "list")
                )
                continue
            collect = _collect_pairs if TEXT_FIELDS[name].is_pairs else _collect_strings
            before, given = texts.get(name, []), collect(value, shapes[name])
            texts[name] = [*before, *given] if shapes[name] == "list" else [*given, *before]
            # A value that was cut off says nothing about what would have stood there.
            if not isinstance(value, Cut):
                named.add(name)
    main = _main_field(fields)
    unnamed = spare[GENERIC] or (spare[_UNKNOWN] if len(spare[_UNKNOWN]) == 1 else [])
    if main and main.name not in named and unnamed:
        texts[main.name] = unnamed
        named.add(main.name)
    is_empty = any(not texts.get(name) for name in named) or (
        bool(values) and not any(one.value for one in values)
    )
    is_cut = any(one.is_cut for one in values)
    return FieldTexts(
        texts, frozenset(named), is_refusal=bool(spare[_REFUSAL]), is_cut=is_cut, is_empty=is_empty
    )


def _main_field(fields: Sequence[ReplyField]) -> ReplyField | None:
    """The field that texts without a name belong to."""
    main = [it for it in fields if it.name != STANDALONE] or list(fields)
    lists = [it for it in main if it.shape == "list"]
    return main[0] if len(main) == 1 else next(iter(lists), None)


def _walk(value: Any, fields: Sequence[ReplyField], *, is_alone: bool) -> Iterator[tuple[str, Any]]:
    """What stands in *value* under a name that means something: a field's, `GENERIC`, ``refusal``, or ``unknown``.

    What has no field's name counts only in JSON that *is_alone*, rather than quoted in a sentence.
    """
    if isinstance(value, Members):
        for key, member in value:
            yield from _walk_member(key, member, fields, is_alone=is_alone)
    elif isinstance(value, list):
        if is_alone:
            yield GENERIC, [item for item in value if isinstance(item, str)]
        for item in value:
            if not isinstance(item, str):
                yield from _walk(item, fields, is_alone=is_alone)


def _walk_member(
    key: str, value: Any, fields: Sequence[ReplyField], *, is_alone: bool
) -> Iterator[tuple[str, Any]]:
    name = find_field(key, fields)
    if name in {it.name for it in fields}:
        yield name, value
    elif name == ASIDE:
        if key.casefold() == _REFUSAL and value:
            yield _REFUSAL, key
    elif isinstance(value, str) and value.lstrip().startswith("{"):
        for inner in find_json(value):
            yield from _walk(inner.value, fields, is_alone=is_alone)
    elif name == GENERIC and is_alone and not _holds_fields(value):
        yield GENERIC, _collect_strings(value, "list")
    elif not isinstance(value, str):
        yield from _walk(value, fields, is_alone=is_alone)
    elif is_alone:
        yield _UNKNOWN, value


def _holds_fields(value: Any) -> bool:
    """Whether *value* holds fields of its own rather than a text or texts."""
    return isinstance(value, Members) or (
        isinstance(value, list) and any(isinstance(it, Members) for it in value)
    )


def _collect_strings(value: Any, shape: str) -> list[str]:
    """The texts in *value*, whatever type it has; only a passage may lack its end."""
    if isinstance(value, Cut):
        return [value] if shape == "passage" else []
    if isinstance(value, str):
        return [value]
    if isinstance(value, Members):
        return [text for it in _pick_members(value) for text in _collect_strings(it, shape)]
    if isinstance(value, list):
        return [text for item in value for text in _collect_strings(item, shape)]
    return []


def _collect_pairs(value: Any, shape: str) -> list[str]:
    """Return the pairs in *value* as ``label: value``: members of objects, or texts as they are.

    Models write ``{"year": 2024}``, ``{"field": "year", "value": 2024}``, or a list of either.
    """
    if isinstance(value, list) and not isinstance(value, Members):
        return [pair for item in value for pair in _collect_pairs(item, shape)]
    if not isinstance(value, Members):
        return _collect_strings(value, shape)
    members = [
        (key, str(member) if type(member) in (int, float) else member) for key, member in value
    ]
    named = {key.casefold(): member for key, member in members}
    label = next((named[key] for key in _LABEL_KEYS if isinstance(named.get(key), str)), None)
    if label is not None and "value" in named:
        members = [(label, named["value"])]
    return [f"{key}: {text}" for key, member in members for text in _collect_strings(member, shape)]


def _pick_members(members: Members) -> list[Any]:
    """The values of an object where a text was asked for: ``{"query": …}``, or ``{"1": …, "2": …}``."""
    if {key for key, _ in members} <= _SCHEMA_KEYS:
        return []
    named = [value for key, value in members if _TEXT_KEY.match(key)]
    return named[:1] or [value for key, value in members if find_field(key, ()) != ASIDE]


def _stands_alone(one: JsonValue, text: str) -> bool:
    """Whether the JSON is the reply, or has its own place in it, rather than being quoted in a sentence."""
    before = text[text.rfind("\n", 0, one.start) + 1 : one.start].strip()
    line_end = text.find("\n", one.end)
    after = text[one.end : line_end if line_end >= 0 else len(text)].strip()
    return (not before or before.endswith((":", "：", "```json", "```"))) and after.strip(
        "`., ;"
    ) == ""


def _choose_texts(field: ReplyField, texts: Sequence[str], prompt: Prompt) -> _Choice:
    """The texts of one field that may be searched for, without repetition, at most as many as were asked for."""
    most = field.max_items if field.shape == "list" else 1
    chosen: dict[str, str] = {}
    notes: list[str] = []
    rules: set[str] = set()
    for text in strip_numbers(_split_texts(field, texts, prompt)[:MOST_TEXTS], prompt.query):
        verdict = judge(text, field, prompt)
        notes.append(verdict.note)
        if verdict.text is None:
            rules.add(verdict.rule)
            continue
        if verdict.key in chosen:
            notes.append("dropped: duplicate")
        elif len(chosen) < most:
            chosen[verdict.key] = verdict.text
        elif field.shape == "list":
            notes.append("dropped: more than requested")
            break
    if holds_parts(field) and list(chosen) == [normalise(prompt.query)]:
        return _Choice(
            (),
            tuple(filter(None, dict.fromkeys([*notes, SAME]))),
            frozenset(rules | {SAME_AS_QUERY}),
        )
    return _Choice(
        tuple(chosen.values()), tuple(filter(None, dict.fromkeys(notes))), frozenset(rules)
    )


def _split_texts(field: ReplyField, texts: Sequence[str], prompt: Prompt) -> list[str]:
    """*texts* with a list that came as one text, or several lines that came for one, taken apart."""
    given = list(texts)
    if not given or field.shape == "passage":
        return given
    if holds_terms(field) and len(given) == 1:
        parts = [
            part for line in split_items(given[0]) for part in re.split(r"[,;|、，；\n]", line)
        ]
    elif field.shape == "list" and len(given) == 1:
        parts = split_items(given[0])
    else:
        parts = [
            part for text in given for part in (split_items(text) if _holds_items(text) else [text])
        ]
    if parts == given:
        return given
    # A sentence that was cut at its commas would not be known as a refusal or as talk any more.
    first = given[0]
    is_whole = is_refusal(first, prompt.query) or is_talk(
        strip_marks(first, prompt.query), field, prompt
    )
    return given if is_whole else parts


def _holds_items(text: str) -> bool:
    """Whether a line of *text* below the first is marked as the item of a list."""
    return "\n" in text and _ITEM_BELOW.search(text) is not None


def _note_missing(field: ReplyField, found: FieldTexts) -> str:
    """The note on a *field* that has no text and no note: that there may be none, or that it is missing."""
    may_be_none = holds_parts(field) and field.min_items == 0
    is_given_empty = field.name in found.named and not found.texts.get(field.name)
    return NONE_NEEDED if may_be_none and is_given_empty else "missing"


def _describe_nothing(reason: str, choices: Iterable[_Choice]) -> str:
    """The sentence for a reply without any usable text: which rules dropped its texts, if it had any to read."""
    rules = [rule for rule in RULES if any(rule in choice.rules for choice in choices)]
    if reason != "unparsable" or not rules:
        return _MESSAGES[reason]
    return f"no text of the model's reply can be searched; dropped: {', '.join(rules)}"


def _explain_nothing(
    prompt: Prompt, found: FieldTexts, choices: Iterable[_Choice], notes: Sequence[tuple[str, str]]
) -> str:
    """Why nothing may be searched for; ``""`` where that is the right answer: nothing to split, resolve or improve."""
    rules = frozenset[str]().union(*(choice.rules for choice in choices))
    if found.is_refusal or "refusal" in rules:
        return "refused"
    if found.is_cut:
        return "truncated"
    asked = [it for it in prompt.fields if it.name != STANDALONE]
    is_none_needed = all(map(holds_parts, asked)) and any(
        (it.name, NONE_NEEDED) in notes for it in asked
    )
    if is_none_needed or {note for _, note in notes} == {SAME}:
        return ""
    return (
        "empty"
        if found.is_empty or not rules.isdisjoint({"no query", SAME_AS_QUERY})
        else "unparsable"
    )
