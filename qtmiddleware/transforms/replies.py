"""Turn a model's reply into the requested transformation, or raise an error with the reason.

A reply is read as JSON with the requested fields. If a prompt asks for one field, the reply may
also be plain text: a line, a passage or a list.
"""

from __future__ import annotations

import re
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
from qtmiddleware.transforms.json_reading import read_json

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

_THOUGHT_CHARS: Final = 1_000_000
_MOST_TEXTS: Final = 500
_MOST_NOTES: Final = 100
_MAX_NOTE_CHARS: Final = 200
_FEW_WORDS: Final = 12
_MESSAGES: Final = {
    "refused": "the model refused to transform the query",
    "empty": "the model's reply has nothing new to search for",
    "truncated": "the model's reply was cut off before a usable text; raise llm.maxTokens",
    "unparsable": "the model's reply has no text that can be searched in the requested fields",
}

_THOUGHTS: Final = re.compile(
    r".*</(?:think|thinking|thoughts?|reasoning)>"
    r"|<(?:think|thinking|thoughts?|reasoning)>.*",
    re.DOTALL | re.IGNORECASE,
)
_SPECIAL_TOKEN: Final = re.compile(r"<\|\w{1,30}\|>|</s>\s*$")
_MARKUP_START: Final = re.compile(r"(?:```\w*\s*)?(?:[{<]|\[\s*(?:[\"'{\[\]]|\Z))")
_MEMBER_START: Final = re.compile(r"\"\w{3,40}\"\s*:\s*[\"\[]")

# The patterns match a key in lower case that has only letters.
_FIELD_KEYS: Final = {
    name: re.compile("|".join(filter(None, [f"^{name.replace('_', '')}$", row.aliases])))
    for name, row in TEXT_FIELDS.items()
}
_OTHER_KEY: Final = re.compile(
    "original|user|input|initial|reason|explan|rational|justif|thought|think|analysis"
    "|note|comment|remark|confidence|lang|type|description|propert|required|role|id$"
    "|title|status|error|refus|warning|history|intent|strategy|score|name$|version$|model"
    "|purpose|aspect|topic|category|difference|why|focus|priority"
    "|原|推理|说明|解释|erkl|begr"
)
_LABEL: Final = re.compile(
    r"([^\W\d_][^:：?？!.\n]{0,50}?)[\s#]*+\d{0,2}\s*+[:：]\s*+(.*)", re.DOTALL
)
_BULLETS: Final = re.compile(r"(?:(?:[-+*•‣▪◦·–—>]|#{1,6})\s+)*")
_NUMBER: Final = re.compile(
    r"[(\[]?(?:Q?\d{1,2}|[a-h](?=\\?\)))\\?[.):\]]+"
    r"(?:\s+|(?=[\"“A-ZÀ-Þ]))"
    r"|\d{1,2}[、．）]\s*"
)
_ITEM_NUMBER: Final = re.compile(r"\D{0,15}(\d{1,2})\\?[.):\]、．）*]")
_NUMBER_INSIDE: Final = re.compile(r"(?:^|(?<=[\s?]))\(?\d{1,2}[.)]\s+")
_BOLD: Final = re.compile(r"\*\*(?=\S)([^*]{1,400})(?<=\S)\*\*")
_QUOTES: Final = dict(zip("\"“'«„`*「‘", "\"”'»“`*」’", strict=True))
_REMARK: Final = re.compile(r"[^()\[\]]\s*[(\[]([^()\[\]]{1,200})[)\]]$")
_SENTENCE_END: Final = re.compile(r"[.!?](?=[\s\"')\]]|$)|[。！？؟।]")
_COLONS: Final = (":", "：")


def parse_transformation(prompt: Prompt, reply: Reply) -> Transformation:
    """Return the transformation that *reply* contains.

    The reply may be JSON, alone or in other text. If the prompt asks for one field, the reply may
    also be plain text. The complete texts of a truncated reply are used. Refusals, remarks, blank
    texts, duplicates and copies of the query are dropped. Reads at most 65,536 characters, in
    linear time.

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
        rules = dict.fromkeys(note for _, note in result.notes if note.startswith("dropped: "))
        details = f"; {', '.join(rules)}" if rules and reason == "unparsable" else ""
        error = ModelError(reason, f"{_MESSAGES[reason]}{details}")
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


def is_within_limits(
    transformation: Transformation,
    fields: Iterable[ReplyField],
) -> bool:
    """Return whether a prompt with *fields* can have *transformation* as its result.

    Transformations from a shared cache need this check, because other processes can write anything
    to the cache.
    """
    max_items = {field.name: field.max_items if field.shape == "list" else 1 for field in fields}
    for name, row in TEXT_FIELDS.items():
        texts = transformation.texts(name)
        max_chars = MAX_KEYWORD_CHARS if row.guard == "terms" else MAX_CHARS[row.shape]
        is_allowed = len(texts) <= max_items.get(name, 0)
        if not (is_allowed and all(it.strip() and len(it) <= max_chars for it in texts)):
            return False
    notes = [text for note in transformation.notes for text in note]
    return len(notes) <= 2 * _MOST_NOTES and all(len(text) <= _MAX_NOTE_CHARS for text in notes)


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
    is_json = text.startswith(("{", "[", '"', "```"))
    thoughts = None if is_json else _THOUGHTS.match(text)
    answer = _SPECIAL_TOKEN.sub("", text[thoughts.end() :] if thoughts else text).strip()
    return answer, bool(thoughts) and not answer


class _Reading:
    """What a reply has for the fields of its prompt.

    Attributes:
        texts: the texts by field, before they are checked. The most likely text comes first. Those
            under ``""`` stand under no field's name.
        named: the fields that the reply names, with or without a text.
        notes: the notes on texts that were dropped, changed or missing, as (field, note) pairs.
        main: the only field, to which texts without a name belong.
        is_cut: whether the end of the reply is missing.
        is_empty: whether the reply has no text, or names a field without a text.
    """

    def __init__(self, prompt: Prompt, reply: Reply) -> None:
        self.prompt = prompt
        self.query = prompt.query
        self.context = " ".join(
            [
                prompt.query,
                *(message.content for message in prompt.history),
            ]
        )
        self.fields = {field.name: field for field in prompt.fields}
        names = [name for name in self.fields if name != STANDALONE]
        self.main = self.fields[names[0]] if len(names) == 1 else None
        self.texts: dict[str, list[str]] = {"": []}
        self.named: set[str] = set()
        self.notes: dict[tuple[str, str], None] = {}
        # Other clients may pass on a missing content as ``None``, although the type forbids it.
        text, self.is_cut = strip_thoughts(reply.text or "")
        self.is_cut = self.is_cut or reply.truncated or len(text) > READ_CHARS
        self.is_refused = False
        self.read(text[:READ_CHARS])
        self.named |= self.texts.keys() - {""}
        self.is_empty = not text or not all(self.texts.get(name) for name in self.named)

    def read(self, text: str) -> None:
        """Find the texts in an answer by field."""
        if _MEMBER_START.match(text):
            # The opening brace may be in the prompt, as the beginning of the answer.
            text = f"{{{text}"
        values, cut_value = read_json(text)
        # A list may be nested so deeply that Python cannot walk through it.
        with suppress(RecursionError):
            self.collect(values)
        self.is_cut = self.is_cut or cut_value is not None
        cut_members = cut_value if isinstance(cut_value, dict) else {}
        for key, member in cut_members.items():
            # Of the passage in which the reply ends, the whole sentences count.
            name = self.find_field(key)
            if name and self.fields[name].shape == "passage" and not self.texts.get(name):
                self.texts[name] = [_keep_whole_sentences(str(member))]
        if not values and not _MARKUP_START.match(text):
            self.read_plain_text(text)
        elif values and not any(values):
            self.named.update(self.fields)
        # Several texts under other names may be anything.
        elif len(self.texts[""]) > 1 and self.main and self.main.shape != "list":
            self.texts[""] = []

    def collect(self, value: Any, name: str = "") -> None:
        """Collect the texts in a JSON *value* for the field *name*, or by the names in its keys."""
        if isinstance(value, str):
            self.texts.setdefault(name, []).append(value)
        elif isinstance(value, list):
            for item in value:
                self.collect(item, name)
        elif isinstance(value, dict):
            members = {key: it for key, it in value.items() if not _OTHER_KEY.match(_fold_key(key))}
            for key, member in members.items():
                field_name = name or self.find_field(key)
                self.named.update({field_name} - {""})
                self.collect(member, field_name)
                # In an object instead of a text, the first text counts, or all with a number.
                if name and not key.isdigit():
                    break

    def find_field(self, key: str) -> str:
        """Return the name of the field that *key* means in any usual spelling; ``""`` if none."""
        folded_key = _fold_key(key)
        return next(
            (name for name in self.fields if _FIELD_KEYS[name].search(folded_key)),
            "",
        )

    def read_plain_text(self, text: str) -> None:
        """Read the texts for the only field from a reply in plain text."""
        query, main = self.query, self.main
        if main is None:
            self.is_refused = chatter.is_refusal(text, query)
            return
        if self.is_cut and not _SENTENCE_END.search(text[-1:]):
            is_passage = main.shape == "passage"
            text = _keep_whole_sentences(text) if is_passage else text.rpartition("\n")[0]
        lines, is_announced = _find_answer_lines(text, query)
        lines = [line for line in lines if not chatter.is_chatter(line, query)] or lines
        if main.shape == "list":
            lines = _split_items("\n".join(lines))
            is_numbered = len(lines) > 1 and all(map(_has_mark, lines))
            is_announced = is_announced or (is_numbered and not _has_guard(main, "terms"))
        elif main.shape == "passage":
            lines = [" ".join(lines).replace("**", "")]
        # "Answer: nope" announces nothing.
        is_announced = is_announced and len(split_words(" ".join(lines))) != 1
        self.texts[main.name if is_announced else ""] = lines

    def choose_texts(self, field: ReplyField) -> tuple[str, ...]:
        """Return the texts of *field* that can be searched, without duplicates."""
        is_unnamed = field is self.main and field.name not in self.named
        texts = self.split_texts(field, self.texts.get("" if is_unnamed else field.name, []))
        values: list[str] = []
        notes: list[str] = []
        for text in texts:
            value, note = self.check_text(text, field)
            whole_text = " ".join(texts) if field.shape == "list" else value
            if value and is_unnamed and (note or not self.is_answer(whole_text, field)):
                value, note = "", "dropped: off topic"
            notes += [note] if note else []
            values += [value] if value else []
        chosen = drop_duplicates(values)
        is_splitting = _has_guard(field, "together")
        # A single sub-query that repeats the query adds nothing.
        if is_splitting and [*map(normalise_text, chosen)] == [normalise_text(self.query)]:
            chosen = ()
            notes.append(SAME)
        if not chosen and not notes:
            is_given_empty = field.name in self.named - self.texts.keys()
            is_needless = is_splitting and field.min_items == 0 and is_given_empty
            notes.append(NONE_NEEDED if is_needless else "missing")
        self.notes |= dict.fromkeys((field.name, note) for note in notes)
        return chosen[: field.max_items if field.shape == "list" else 1]

    def split_texts(self, field: ReplyField, texts: list[str]) -> list[str]:
        """Return *texts* without item numbers. A list that is written as one text is split."""
        if field.shape == "list" and len(texts) == 1:
            texts = _split_items(texts[0])
            is_one_text = len(texts) == 1 and not chatter.is_refusal(texts[0], self.query)
            if _has_guard(field, "terms") and is_one_text:
                texts = re.split(r"[,;|、，；]", texts[0])
        if field.shape == "passage":
            return texts
        texts = texts[:_MOST_TEXTS]
        numbers = {match[1] for match in map(_ITEM_NUMBER.match, texts) if match}
        return [
            _strip_marks(
                text,
                self.query,
                is_numbered={"1", "2"} <= numbers,
            )
            for text in texts
        ]

    def is_answer(self, text: str, field: ReplyField) -> bool:
        """Return whether *text*, which stands under no field's name, may be what was asked for.

        It may be if it has a word of the question, or is a question or a long passage.
        """
        if field.shape == "passage" and len(split_words(text)) > _FEW_WORDS:
            return True
        return _is_question(text) or chatter.has_common_word(text, self.context)

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
        if self.is_empty or notes & {"dropped: no query", SAME}:
            return "empty"
        return "unparsable"

    def check_text(self, text: str, field: ReplyField) -> tuple[str, str]:
        """Return *text* as it is searched for, and a note if it was dropped or cut.

        It loses its number, quotation marks, label and talk about the task. The text is ``""`` if
        it was dropped; the note is ``""`` if it was neither dropped nor cut.
        """
        query = self.query
        line = clean_text(text)
        value = line if field.shape == "passage" else _strip_markup(line, query)
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

        The model wrote *value* as *line*, with a number, a label or quotation marks around it.
        """
        query = self.query
        key = normalise_text(value)
        guard = TEXT_FIELDS[field.name].guard
        has_letters = any(map(str.isalpha, value)) or not any(map(str.isalpha, query))
        # If the query itself begins with the same bracket, the text may be a rewrite of it.
        is_markup = _MARKUP_START.match(value) and value[:1] != query[:1]
        is_heading = line.endswith(_COLONS) and not query.endswith(_COLONS)
        if chatter.is_refusal(line, query) or chatter.is_refusal(value, query):
            return "refusal"
        # A model may repeat the instructions, or the example in them.
        if key.count(" ") >= 3 and key in normalise_text(self.prompt.system):
            return "copies the prompt"
        if not key or is_heading or chatter.is_chatter(value, query):
            return "no query"
        if field.shape != "passage" and chatter.is_off_topic_talk(
            value,
            query,
            self.context,
        ):
            return "no query"
        if guard == "terms":
            return "too long for a keyword" if len(value) > MAX_KEYWORD_CHARS else ""
        # One of several sub-queries may be the query itself, if the others add to it.
        if key == normalise_text(query) and guard != "together":
            return "same as the query"
        if not has_letters:
            return "no letters"
        if guard == "together" and has_unresolved_reference(value, query):
            return "unresolved reference"
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


def _has_guard(field: ReplyField, guard: str) -> bool:
    return TEXT_FIELDS[field.name].guard == guard


def _fold_key(key: str) -> str:
    return re.sub(r"[\W\d_]+", "", fold_text(key[:80]))


def _keep_whole_sentences(text: str) -> str:
    ends = [match.end() for match in _SENTENCE_END.finditer(text)]
    return text[: ends[-1]] if ends else ""


def _find_answer_lines(text: str, query: str) -> tuple[list[str], bool]:
    """Return the lines of a reply in plain text without labels and remarks.

    Returns:
        The lines.
        Whether a label or a line with a colon at its end announces them: "Rewritten query: ...".
    """
    lines: list[str] = []
    is_announced = is_remark = False
    for line in map(str.strip, text.splitlines()):
        label, rest = _split_label(line, query)
        if not line or line.startswith(("```", "---", "***")):
            is_remark = False
        elif any(map(_OTHER_KEY.match, label.split())):
            is_remark = True
        elif label or line.endswith(_COLONS):
            # What precedes the first label is talk about the task.
            lines = lines if is_announced else []
            lines += [rest] if label and rest else []
            is_announced, is_remark = True, False
        elif not is_remark:
            lines.append(line.lstrip("#> "))
    return lines, is_announced


def _split_label(text: str, query: str) -> tuple[str, str]:
    """Return the label at the start of *text*, such as "rewritten query", and the text after it.

    Without a label, returns ``""`` and the whole *text*.
    """
    plain = _strip_marks(text, query)
    is_headline = text.startswith(("#", "**")) and ":" not in text
    match = _LABEL.match(f"{plain}:" if is_headline else plain)
    if not match or match[1].casefold() in query.casefold():
        return "", text
    words = re.findall(r"[^\s()_/,*-]+(?:-\w+)*", fold_text(match[1]))
    is_label = all(
        chatter.compile_patterns("labels").fullmatch(word)
        or any(key.search(word) for key in _FIELD_KEYS.values())
        for word in words
    )
    return (" ".join(words), match[2]) if is_label else ("", text)


def _split_items(text: str) -> list[str]:
    """Return the items of a list: the lines with a bullet or a number, or all lines."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    # Some models write all items on one line: 1. What is it? 2. Who made it?
    first, *items = _NUMBER_INSIDE.split(text) if len(lines) == 1 else [text]
    if items and not first:
        return items
    return [line for line in lines if _has_mark(line)] or lines


def _has_mark(line: str) -> bool:
    plain = _BOLD.sub(r"\1", line)
    return bool(_BULLETS.match(plain)[0] or _NUMBER.match(plain))  # type: ignore[index]


def _strip_marks(text: str, query: str, *, is_numbered: bool = False) -> str:
    """Return *text* without bullets, item number and bold type."""
    plain = text if "**" in query else _BOLD.sub(r"\1", text)
    text = _BULLETS.sub("", plain.strip(), count=1)
    number = _NUMBER.match(text)
    if number and number[0] not in query:
        is_ordinal = re.search("[2-9]|1\\d", number[0]) and not is_numbered
        text = text if is_ordinal else text[number.end() :]
    return text.strip()


def _strip_markup(text: str, query: str) -> str:
    """Return *text* without item number, label, quotation marks and a remark in brackets."""
    text = _strip_marks(text, query)
    _, rest = _split_label(text, query)
    text = _strip_quotes(rest or text, query)
    remark = _REMARK.search(text[-210:])
    is_chatter = remark and chatter.is_chatter(remark[1], query)
    return text[: 1 - len(remark[0])] if remark and is_chatter else text


def _strip_quotes(text: str, query: str) -> str:
    """Return *text* without the quotation marks around it, unless *query* begins with one too."""
    text = text.strip()
    inner, closer = text[1:-1], _QUOTES.get(text[:1], "")
    if not inner or query[:1] in _QUOTES:
        return text
    # Two quotes in one text are not one quote around it.
    is_quoted = text[-1] == closer and closer not in inner and text[0] not in inner
    return inner.strip() if is_quoted else text


def _is_question(text: str) -> bool:
    return text.rstrip("\"'”»*_ ").endswith(("?", "？", "؟"))
