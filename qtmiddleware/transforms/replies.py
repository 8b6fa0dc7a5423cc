"""Turn a model's reply into the requested transformation, or raise an error with the reason.

A reply is read as JSON with the requested fields. If a prompt asks for one field, the reply may
also be plain text: a line, a passage or a list.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from qtmiddleware.catalogue import STANDALONE, TEXT_FIELDS, Transformation
from qtmiddleware.errors import ModelError
from qtmiddleware.preprocessing.text import (
    clean_text,
    cut_at_word,
    fold_text,
    normalise_text,
    split_words,
)
from qtmiddleware.protocols import Prompt, Reply, ReplyField
from qtmiddleware.transforms import chatter

READ_CHARS: Final = 65_536
"""The maximum number of characters that are read of a reply."""
MAX_CHARS: Final = {"line": 1_000, "list": 1_000, "passage": 4_000}
"""The maximum number of characters of a text, by the field's shape. Longer texts are cut."""
MAX_KEYWORD_CHARS: Final = 100
"""The maximum number of characters of a key term. Longer terms are dropped."""
SAME: Final = "dropped: same as the query"
"""The note on a text that only repeats the question."""
NONE_NEEDED: Final = "none needed"
"""The note on a field that the model left empty on purpose."""

_DECODER: Final = json.JSONDecoder(strict=False)
_OPENING: Final = re.compile(r"[{\[](\s*+[\"'{\[])?")
# Prose with more brackets is not read to its end, so that reading takes linear time.
_MOST_OPENINGS: Final = 10
_CHARACTERS: Final = re.compile(r"[\x00-\x1f\ud800-\udfff]")
_THOUGHT_CHARS: Final = 1_000_000
_MOST_TEXTS: Final = 500
_FEW_WORDS: Final = 12
_MESSAGES: Final = {
    "refused": "the model refused to transform the query",
    "empty": "the model's reply has nothing new to search for",
    "truncated": "the model's reply was cut off before a usable text; raise llm.maxTokens",
    "unparsable": "the model's reply has no text that can be searched in the requested fields",
}

_SPECIAL_TOKEN: Final = re.compile(r"<\|\w{1,30}\|>")
_THOUGHTS: Final = re.compile(
    r".*</(?:think|thinking)>|<(?:think|thinking)>.*", re.DOTALL | re.IGNORECASE
)
_MARKUP_START: Final = re.compile(r"[{<]|\[\s*[\"'{\[\]]")
# The patterns match a key in lower case that has only letters.
_FIELD_KEYS: Final = {
    name: re.compile("|".join(filter(None, [f"^{name.replace('_', '')}$", row.aliases])))
    for name, row in TEXT_FIELDS.items()
}
_LABEL: Final = re.compile(
    r"[\"']?([^\W\d_][^:：?？!.\n\"]{0,50}?)[\"']?[\s#]*\d{0,2}\s*[:：]\s*(.*)", re.DOTALL
)
_BULLET: Final = re.compile(r"^(?:[-+*•>]|#{1,6})\s+")
_NUMBER: Final = re.compile(r"\(?(\d{1,2})(?:[.):]\s+|[、．）]\s*)")
_BOLD: Final = re.compile(r"\*\*(?=\S)([^*]{1,400})(?<=\S)\*\*")
_QUOTES: Final = dict(zip("\"'“«„`*「", "\"'”»“`*」", strict=True))
_COLONS: Final = (":", "：")


def parse_transformation(prompt: Prompt, reply: Reply) -> Transformation:
    """Return the transformation that *reply* contains.

    The reply may be JSON, alone or in other text. If the prompt asks for one field, the reply may
    also be plain text. The complete texts of a truncated reply are used. Refusals, blank texts,
    duplicates and copies of the query are dropped. Reads at most 65,536 characters, in linear time.

    Returns a transformation with a note and without texts if the reply only repeats the query or
    says that it needs no sub-queries.

    Raises:
        ModelError: The reply has no text to search for. The error's reason is ``refused``,
            ``empty``, ``truncated`` or ``unparsable``.
    """
    reading = _Reading(prompt, reply)
    texts = {field.name: reading.choose_texts(field) for field in prompt.fields}
    if reading.is_cut:
        reading.notes["reply", "truncated"] = None
    result = build_transformation(texts, reading.notes)
    if result.is_empty and (reason := reading.find_failure()):
        error = ModelError(reason, _MESSAGES[reason])
        error.notes = result.notes
        raise error
    return result


def build_transformation(
    texts_by_field: Mapping[str, Sequence[str]], notes: Iterable[tuple[str, str]]
) -> Transformation:
    """Return a transformation. A field with a single text gets the first text."""
    values: dict[str, Any] = {
        name: tuple(texts) if row.shape == "list" else texts[0]
        for name, row in TEXT_FIELDS.items()
        if (texts := texts_by_field.get(name))
    }
    return Transformation(**values, notes=tuple(notes))


def drop_duplicates(texts: Iterable[str]) -> tuple[str, ...]:
    """Return *texts* without those that equal an earlier one but for case and punctuation."""
    distinct: dict[str, str] = {}
    for text in texts:
        distinct.setdefault(normalise_text(text), text)
    return tuple(distinct.values())


def is_within_limits(transformation: Transformation, fields: Iterable[ReplyField]) -> bool:
    """Return whether a prompt with *fields* can have *transformation* as its result.

    Transformations from a shared cache need this check, because other processes can write anything
    to the cache.
    """
    max_items = {field.name: field.max_items if field.shape == "list" else 1 for field in fields}
    for name, row in TEXT_FIELDS.items():
        texts = transformation.texts(name)
        max_chars = MAX_KEYWORD_CHARS if row.guard == "terms" else MAX_CHARS[row.shape]
        is_allowed = len(texts) <= max_items.get(name, 0)
        if not (is_allowed and all(text.strip() and len(text) <= max_chars for text in texts)):
            return False
    return True


def strip_thoughts(text: str) -> tuple[str, bool]:
    """Return *text* without the model's reasoning before the answer.

    Some models leave out the opening tag of the reasoning, so everything before a closing tag is
    removed. If *text* begins like JSON, the tag may be part of a value, and nothing is removed.
    Reads at most a million characters.

    Returns:
        The answer; ``""`` if *text* ends within or after the reasoning.
        Whether *text* ends within or after the reasoning.
    """
    text = text[:_THOUGHT_CHARS].strip()
    if text.startswith(("{", "[", "```")):
        return text, False
    thoughts = _THOUGHTS.match(text)
    answer = _SPECIAL_TOKEN.sub("", text[thoughts.end() :] if thoughts else text).strip()
    return answer, bool(thoughts) and not answer


def read_json(text: str) -> tuple[list[Any], bool]:
    """Return the outermost JSON objects and lists in *text*, and whether the last one is cut off.

    A value that is cut off lacks its incomplete text.
    """
    text = _CHARACTERS.sub(" ", text)
    values: list[Any] = []
    position = 0
    for _ in range(_MOST_OPENINGS):
        opening = _OPENING.search(text, position)
        if not opening:
            break
        position = opening.start()
        try:
            value, position = _DECODER.raw_decode(text, position)
            values.append(value)
        except (ValueError, RecursionError):
            if (cut_value := _read_cut_json(text[position:])) is not None:
                return [*values, cut_value], True
            # What is inside broken JSON may be anything. Other brackets belong to prose.
            if opening[1]:
                break
            position += 1
    return values, False


def _read_cut_json(text: str) -> Any:
    """Return the value at the start of *text* without its incomplete text; ``None`` if none."""
    # pydantic takes long to import, and most processes never see a reply that is cut off.
    from pydantic_core import from_json

    try:
        from_json(text)
    except ValueError as error:
        # Other errors are mistakes: what follows them would be lost, or read as something else.
        if str(error).startswith("EOF"):
            return from_json(text, allow_partial=True)
    return None


class _Reading:
    """What a reply has for the fields of its prompt.

    Attributes:
        main: the only field, to which texts without a name belong.
        texts: the texts by field, before they are checked. The most likely text comes first. Those
            under ``""`` stand under no field's name.
        named: the fields that the reply names, with or without a text.
        notes: the notes on texts that were dropped, changed or missing, as (field, note) pairs.
        is_blank: whether the reply has no text.
        is_cut: whether the end of the reply is missing.
        is_refused: whether the model refused in plain text to write several fields.
    """

    def __init__(self, prompt: Prompt, reply: Reply) -> None:
        self.prompt = prompt
        self.query = prompt.query
        self.context = " ".join([prompt.query, *(message.content for message in prompt.history)])
        fields = [field for field in prompt.fields if field.name != STANDALONE]
        self.main = fields[0] if len(fields) == 1 else None
        self.texts: defaultdict[str, list[str]] = defaultdict(list)
        self.named: set[str] = set()
        self.notes: dict[tuple[str, str], None] = {}
        text, is_cut_in_thoughts = strip_thoughts(reply.text)
        values, is_cut_in_json = read_json(text[:READ_CHARS])
        is_too_long = len(text) > READ_CHARS
        self.is_blank = not text
        self.is_cut = reply.truncated or is_cut_in_thoughts or is_cut_in_json or is_too_long
        self.is_refused = False
        # A list may be nested so deeply that Python cannot walk through it.
        with suppress(RecursionError):
            self.collect(values)
        # JSON in the middle of a text may be a part of the text.
        if not self.named and not (values and text.startswith(("{", "[", "```"))):
            self.texts.clear()
            self.read_plain_text(text[:READ_CHARS])

    def collect(self, value: Any, name: str = "") -> None:
        """Collect the texts in a JSON *value* for the field *name*, or by the names in its keys."""
        if isinstance(value, str):
            self.texts[name].append(value)
        elif isinstance(value, list):
            for item in value:
                self.collect(item, name)
        elif isinstance(value, dict) and name:
            # Some models wrap each text in an object. If it has several texts, any may be meant.
            texts = [member for member in value.values() if isinstance(member, str)]
            self.texts[name].append(texts[0] if len(texts) == 1 else "")
        elif isinstance(value, dict):
            for key, member in value.items():
                field_name = self.find_field(key)
                if field_name:
                    self.named.add(field_name)
                self.collect(member, field_name)

    def find_field(self, key: str) -> str:
        """Return the name of the field that *key* means in any usual spelling; ``""`` if none."""
        folded_key = re.sub(r"[\W\d_]+", "", fold_text(key[:80]))
        names = (field.name for field in self.prompt.fields)
        return next((name for name in names if _FIELD_KEYS[name].search(folded_key)), "")

    def read_plain_text(self, text: str) -> None:
        """Read the texts for the only field from a reply in plain text."""
        if self.main is None:
            self.is_refused = chatter.is_refusal(text, self.query)
            return
        lines = [_BOLD.sub(r"\1", line.strip()) for line in text.splitlines()]
        if self.is_cut:
            del lines[-1:]
        lines = [line for line in lines if line and not line.startswith("```")]
        if not lines or _MARKUP_START.match(lines[0]):
            return
        # What precedes "Rewritten query: ..." is talk about the task.
        labelled = [n for n, line in enumerate(lines) if _strip_label(line, self.query) != line]
        lines = lines[labelled[0] :] if labelled else lines
        lines = [text for line in lines if (text := _strip_label(line, self.query))]
        lines = [line for line in lines if not chatter.is_chatter(line, self.query)] or lines
        numbered = [line for line in lines if _NUMBER.match(line)]
        # A numbered list is what was asked for, even without a word of the question.
        if self.main.shape == "list" and len(numbered) > 1:
            self.named.add(self.main.name)
            self.texts[self.main.name] = numbered
        else:
            self.texts[""] = [" ".join(lines)] if self.main.shape == "passage" else lines

    def choose_texts(self, field: ReplyField) -> tuple[str, ...]:
        """Return the texts of *field* that can be searched, without duplicates."""
        is_unnamed = field is self.main and field.name not in self.named
        found = self.texts["" if is_unnamed else field.name]
        texts = found[:_MOST_TEXTS]
        if field.shape == "list":
            texts = self.split_items(field, texts)
        if field.shape != "passage":
            texts = _strip_marks(texts, self.query)
        values: list[str] = []
        notes: list[str] = []
        for text in texts:
            value, note = self.check_text(text, field)
            whole_text = " ".join(texts) if field.shape == "list" else value
            if value and is_unnamed and not self.is_about_query(whole_text, field):
                value, note = "", "dropped: off topic"
            notes += [note] if note else []
            values += [value] if value else []
        chosen = drop_duplicates(values)
        is_splitting = TEXT_FIELDS[field.name].guard == "together"
        # A single sub-query that repeats the query adds nothing.
        if is_splitting and [*map(normalise_text, chosen)] == [normalise_text(self.query)]:
            chosen = ()
            notes.append(SAME)
        if not found:
            is_needless = is_splitting and field.min_items == 0 and field.name in self.named
            notes.append(NONE_NEEDED if is_needless else "missing")
        self.notes |= dict.fromkeys((field.name, note) for note in notes)
        return chosen[: field.max_items if field.shape == "list" else 1]

    def split_items(self, field: ReplyField, texts: list[str]) -> list[str]:
        """Return the items of a list, which may be written as one text."""
        lines = [line.strip() for text in texts for line in text.splitlines() if line.strip()]
        items = [line for line in lines if _BULLET.match(line) or _NUMBER.match(line)]
        if items and field.name not in self.named:
            return items
        is_terms = TEXT_FIELDS[field.name].guard == "terms"
        if is_terms and len(lines) == 1 and not chatter.is_refusal(lines[0], self.query):
            return re.split(r"[,;、，；]", lines[0])
        return lines

    def is_about_query(self, text: str, field: ReplyField) -> bool:
        """Return whether *text*, which stands under no field's name, may be what was asked for."""
        if field.shape == "passage" and len(split_words(text)) > _FEW_WORDS:
            return True
        is_question = text.rstrip("\"'”»*_ ").endswith(("?", "？", "؟"))
        return is_question or chatter.has_common_word(text, self.context)

    def find_failure(self) -> str:
        """Return the reason why the reply has no usable texts; ``""`` if it needs none."""
        notes = {note for _, note in self.notes}
        # The order matters: a refusal or a cut explains why texts are missing.
        if self.is_refused or "dropped: refusal" in notes:
            return "refused"
        if self.is_cut:
            return "truncated"
        if notes == {SAME} or (self.main and NONE_NEEDED in notes):
            return ""
        if self.is_blank or self.named or notes & {"dropped: no query", SAME}:
            return "empty"
        return "unparsable"

    def check_text(self, text: str, field: ReplyField) -> tuple[str, str]:
        """Return *text* as it is searched for, and a note if it was dropped or cut.

        It loses its label, quotation marks and talk about the task. The text is ``""`` if it was
        dropped; the note is ``""`` if it was neither dropped nor cut.
        """
        query = self.query
        line = clean_text(text)
        value = _strip_quotes(_strip_label(line, query), query)
        talk, rest = chatter.split_chatter(value, query)
        value = clean_text(_strip_quotes(rest or value, query))
        rule = self.find_broken_rule(line, value, field)
        # What follows talk about the task may be more of it.
        is_announced = not talk or talk.endswith(_COLONS)
        if not (is_announced or rule or chatter.has_common_word(value, self.context)):
            rule = "no query"
        if rule:
            return "", f"dropped: {rule}"
        limit = MAX_CHARS[field.shape]
        note = "cut: too long" if len(value) > limit else ""
        return cut_at_word(value, limit).rstrip(), note

    def find_broken_rule(self, line: str, value: str, field: ReplyField) -> str:
        """Return the rule that forbids to search for *value*; ``""`` if it can be searched for.

        The model wrote *value* as *line*, with a label, quotation marks or talk around it.
        """
        query = self.query
        key = normalise_text(value)
        guard = TEXT_FIELDS[field.name].guard
        if chatter.is_refusal(line, query) or chatter.is_refusal(value, query):
            return "refusal"
        # A model may repeat the instructions, or the example in them.
        if key.count(" ") >= 3 and key in normalise_text(self.prompt.system):
            return "copies the prompt"
        is_heading = value.endswith(_COLONS) and not query.endswith(_COLONS)
        if not key or is_heading or chatter.is_chatter(value, query):
            return "no query"
        if guard == "terms":
            return "too long for a keyword" if len(value) > MAX_KEYWORD_CHARS else ""
        if field.shape != "passage" and chatter.is_off_topic_talk(value, query, self.context):
            return "no query"
        # One of several sub-queries may be the query itself, if the others add to it.
        if key == normalise_text(query) and guard != "together":
            return "same as the query"
        if any(map(str.isalpha, query)) and not any(map(str.isalpha, value)):
            return "no letters"
        if guard == "together" and has_unresolved_reference(value, query):
            return "unresolved reference"
        # If the query itself begins with the same bracket, the text may be a rewrite of it.
        is_markup = _MARKUP_START.match(value) and value[:1] != query[:1]
        return "JSON" if is_markup else ""


def has_unresolved_reference(sub_query: str, query: str) -> bool:
    """Return whether *sub_query* refers to something that it does not name, such as "that person".

    A reference is allowed if *query* contains it too, or if another clause precedes it.
    """
    text = fold_text(sub_query)
    match = chatter.compile_patterns("unresolved").search(text)
    if not match or match.group().strip() in fold_text(query):
        return False
    return not re.search(r",| and | who ", text[: match.start()])


def _strip_marks(texts: Sequence[str], query: str) -> list[str]:
    """Return *texts* without bullets and the numbers of a numbered list."""
    texts = [_BULLET.sub("", text.strip()) for text in texts]
    numbers = [number for number in map(_NUMBER.match, texts) if number]
    # A single text may begin with an ordinal: "2. Weltkrieg".
    is_numbered = numbers and len(numbers) == len(texts) and numbers[0][1] == "1"
    if not is_numbered or numbers[0][0] in query:
        return texts
    return [text[number.end() :] for text, number in zip(texts, numbers, strict=True)]


def _strip_label(text: str, query: str) -> str:
    """Return *text* without a label at its start, such as "Rewritten query:"."""
    match = _LABEL.match(text)
    if not match or match[1].casefold() in query.casefold():
        return text
    words = re.findall(r"[^\s()_/,*-]+(?:-\w+)*", fold_text(match[1]))
    labels = (
        chatter.compile_patterns("labels").fullmatch,
        *(pattern.search for pattern in _FIELD_KEYS.values()),
    )
    is_label = all(any(is_match(word) for is_match in labels) for word in words)
    return match[2] if is_label else text


def _strip_quotes(text: str, query: str) -> str:
    """Return *text* without the quotation marks around it, unless *query* begins with one too."""
    text = text.strip()
    inner, closer = text[1:-1], _QUOTES.get(text[:1], "")
    if not inner or query[:1] in _QUOTES:
        return text
    # Two quotes in one text are not one quote around it.
    is_quoted = text[-1] == closer and closer not in inner and text[0] not in inner
    return inner.strip() if is_quoted else text
