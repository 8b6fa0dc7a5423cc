"""A model's reply, turned into the transformation that was asked for, or into the reason why there is none."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from qtmiddleware.catalogue import STANDALONE, TEXT_FIELDS, Transformation
from qtmiddleware.errors import ModelError
from qtmiddleware.protocols import Prompt, Reply, ReplyField
from qtmiddleware.transforms.limits import MAX_CHARS, MAX_KEYWORD_CHARS, MOST_TEXTS, READ_CHARS
from qtmiddleware.transforms.lines import bare, items, texts_by_field, unquoted
from qtmiddleware.transforms.noise import is_beside_the_point, is_error_page, is_noise, without_lead_in
from qtmiddleware.transforms.picking import Picked, pick
from qtmiddleware.transforms.references import points_elsewhere
from qtmiddleware.transforms.refusals import is_refusal
from qtmiddleware.transforms.salvage import Cut, json_string, json_values
from qtmiddleware.transforms.thoughts import without_thoughts
from qtmiddleware.transforms.wording import clean, normal, shorten

SAME: Final = "dropped: same as the query"
"""The note on a field that only repeated the question."""

_SENTENCE_END: Final = re.compile(r"[.!?](?=[\s\"')\]]|$)|[。！？؟।]")
_JSON_OPENING: Final = re.compile(
    r"\s*(?:```\w*\s*)?[{\[]\s*(?:[\"'“{\[\]},]|\w+\s*:|-?\d+\s*[,\]]|null|true|false|\Z)"
)
# The inside of an object whose braces are missing.
_JSON_MEMBER: Final = re.compile(r"\s*\"\w{3,40}\"\s*:\s*[\"\[]")
# White space is looked through from its beginning alone: each of its line ends would read it again.
_ITEM_BELOW: Final = re.compile(r"(?<!\s)[^\S\n]*+\n\s*+(?:\d|[-*•])")
_ASIDE: Final = re.compile(r"\s*[(\[]([^()\[\]]*)[)\]]$")
_MESSAGES: Final = {
    "refused": "the model refused to transform the query",
    "empty": "the model's reply holds nothing new to search for",
    "truncated": "the model's reply broke off before anything usable; raise llm.maxTokens",
    "unparsable": "the model's reply has none of the fields that were asked for",
}


def parse(prompt: Prompt, reply: Reply) -> Transformation:
    """What *reply* gives for the fields of *prompt*.

    Reads JSON, whole or broken, and plain text; keeps what is complete. No refusal, remark, blank, duplicate or copy
    of the query becomes a text to search for. At most 65,536 characters are read, in linear time. A reply that says
    there is nothing to split, or that gives the query back as it is, gives an empty transformation with a note.

    Raises `ModelError` with the reason ``refused``, ``empty``, ``truncated`` or ``unparsable``.
    """
    text, is_cut = _readable(reply)
    return _Reading(prompt, text, is_cut=is_cut or reply.truncated).transformation()


def _readable(reply: Reply) -> tuple[str, bool]:
    """The part of a reply that is its answer, and whether its end is missing."""
    # Clients of other making pass on a missing content as it is, whatever the type says.
    given: object = reply.text
    whole = given if isinstance(given, str) else ""
    text, is_cut = without_thoughts(whole)
    text = text[: READ_CHARS + 1]
    if _JSON_MEMBER.match(text):
        text = f"{{{text}}}"
    decoded = json_string(text) if len(text) <= READ_CHARS else None
    return (decoded if decoded is not None else text[:READ_CHARS]), is_cut or len(text) > READ_CHARS


class _Reading:
    """One reply being read for one prompt; keeps what was seen on the way to tell why something is missing."""

    def __init__(self, prompt: Prompt, text: str, *, is_cut: bool) -> None:
        self.prompt = prompt
        self.text = text
        self.is_cut = is_cut
        self.refused = False
        self.nothing_new = not text.strip()
        self.notes: dict[tuple[str, str], None] = {}
        self.original = normal(prompt.query)
        self.instructions = normal(prompt.system)

    def transformation(self) -> Transformation:
        found = json_values(self.text)
        picked = pick(found, self.text, self.prompt.fields)
        self.is_cut |= any(one.cut for one in found)
        self.refused |= picked.refusal
        is_json = bool(_JSON_OPENING.match(self.text))
        self.nothing_new |= bool(found) and not any(one.value for one in found)
        self.nothing_new |= any(not picked.texts.get(name) for name in picked.named)
        if not picked.named and not picked.texts and not is_json and not is_error_page(self.text):
            picked = Picked(texts=self._plain_texts())
        values = {field.name: self._usable(field, picked.texts.get(field.name, [])) for field in self.prompt.fields}
        self._note_what_lacks(values, picked)
        return self._result(values)

    def _plain_texts(self) -> dict[str, list[str]]:
        text = self.text
        if self.is_cut and not _SENTENCE_END.search(text.rstrip()[-1:]):
            text = text.rpartition("\n")[0] or self._whole_sentences(text)
        opening = next((line for line in text.splitlines() if line.strip()), "")
        self.refused |= is_refusal(opening, self.prompt.query)
        self.nothing_new |= is_noise(bare(opening, self.prompt.query), self.prompt.query)
        texts = texts_by_field(text, self.prompt.fields, self.prompt.query)
        # One line of plain text that is longer than any query is an essay or debris.
        fits = {field.name: MAX_CHARS[field.shape] for field in self.prompt.fields if field.shape != "passage"}
        return {name: [one for one in found if len(one) <= fits.get(name, READ_CHARS)] for name, found in texts.items()}

    def _whole_sentences(self, text: str) -> str:
        return _whole_sentences(text) if any(field.shape == "passage" for field in self.prompt.fields) else ""

    def _usable(self, field: ReplyField, texts: Sequence[str]) -> list[str]:
        """The texts of one field that can be searched for, without repetition, at most as many as were asked for."""
        most = field.max_items if field.shape == "list" else 1
        kept: dict[str, str] = {}
        # A sentence that was cut at its commas would not be known as a refusal or as talk any more.
        query = self.prompt.query
        is_talk = any(is_refusal(text, query) or self._is_talk(field, bare(text, query)) for text in texts[:1])
        parts = texts if is_talk else _apart(field, texts)
        for text in parts[:MOST_TEXTS]:
            value = self._value(field, text)
            if not value:
                continue
            key = normal(value)
            if key in kept:
                self._note(field, "dropped: duplicate")
            elif len(kept) < most:
                kept[key] = value
            elif field.shape == "list":
                self._note(field, "dropped: more than asked for")
                break
        if _is_split(field) and list(kept) == [self.original]:
            self.nothing_new = True
            self._note(field, SAME)
            return []
        return list(kept.values())

    def _value(self, field: ReplyField, text: str) -> str:
        """*text* as it is searched for, or nothing where it should not be."""
        query = self.prompt.query
        if field.shape == "passage":
            whole = clean(_whole_sentences(text) if isinstance(text, Cut) else text)
            value = unquoted(without_lead_in(whole, query, is_passage=True), query)
        else:
            value = clean(bare(clean(text), query))
            aside = _ASIDE.search(value[-200:])
            if aside and len(aside.group()) < len(value) and is_noise(aside.group(1), query):
                value = value[: -len(aside.group())]
        fault = self._fault(field, clean(text), value)
        if fault:
            self._note(field, fault)
            return ""
        limit = MAX_CHARS[field.shape]
        if len(value) > limit:
            self._note(field, "cut: too long")
        return shorten(value, limit).rstrip()

    def _fault(self, field: ReplyField, text: str, value: str) -> str:
        query = self.prompt.query
        if is_refusal(text, query) or (value != text and is_refusal(value, query)):
            self.refused = True
            return "dropped: refusal"
        key = normal(value)
        if key.count(" ") >= 3 and key in self.instructions:
            return "dropped: copy of the instructions"
        if not key or self._is_talk(field, value) or (text.endswith((":", "：")) and not query.endswith((":", "："))):
            self.nothing_new = True
            return "dropped: no query"
        # One of several sub-queries may well be the query: it is one side of it then.
        if key == self.original and not (_is_split(field) or _holds_terms(field)):
            self.nothing_new = True
            return SAME
        if _holds_terms(field):
            return "dropped: no keyword" if len(value) > MAX_KEYWORD_CHARS else ""
        if not any(map(str.isalpha, value)) and any(map(str.isalpha, query)):
            return "dropped: no query"
        if _is_split(field) and points_elsewhere(value, query):
            return "dropped: unresolved reference"
        return "dropped: no query" if _JSON_OPENING.match(value) and value[:1] != query[:1] else ""

    def _is_talk(self, field: ReplyField, value: str) -> bool:
        query = self.prompt.query
        return is_noise(value, query) or is_beside_the_point(value, field.shape, query, f"{query} {self.prompt.user}")

    def _note(self, field: ReplyField, what: str) -> None:
        self.notes[field.name, what] = None

    def _note_what_lacks(self, values: dict[str, list[str]], picked: Picked) -> None:
        noted = {name for name, _ in self.notes}
        for field in self.prompt.fields:
            if values[field.name] or field.name in noted:
                continue
            is_settled = _is_split(field) and field.min_items == 0 and field.name in picked.named
            self._note(field, "none needed" if is_settled and not picked.texts.get(field.name) else "missing")
        if self.is_cut:
            self.notes["reply", "truncated"] = None

    def _result(self, values: dict[str, list[str]]) -> Transformation:
        result = filled(values, self.notes)
        if result.is_empty and not self._is_settled():
            raise self._error()
        return result

    def _is_settled(self) -> bool:
        """Whether nothing is the right answer: nothing to split, to resolve or to improve."""
        if self.refused or self.is_cut:
            return False
        if {what for _, what in self.notes} == {SAME}:
            return True
        split = [field.name for field in self.prompt.fields if field.name != STANDALONE]
        return all(_is_split(field) for field in self.prompt.fields if field.name in split) and any(
            (name, "none needed") in self.notes for name in split
        )

    def _error(self) -> ModelError:
        if self.refused:
            reason = "refused"
        elif self.is_cut:
            reason = "truncated"
        else:
            reason = "empty" if self.nothing_new else "unparsable"
        return ModelError(reason, _MESSAGES[reason])


def _is_split(field: ReplyField) -> bool:
    """Whether *field* holds the parts of the question: there may be none, and each must make sense alone."""
    row = TEXT_FIELDS.get(field.name)
    return row is not None and row.guard == "together"


def _holds_terms(field: ReplyField) -> bool:
    row = TEXT_FIELDS.get(field.name)
    return row is not None and row.guard == "terms"


def _apart(field: ReplyField, texts: Sequence[str]) -> list[str]:
    """*texts* with a list that came as one text, or several lines that came for one, taken apart."""
    if field.shape == "passage":
        return list(texts)
    if _holds_terms(field) and len(texts) == 1:
        lines = items(texts[0])
        return [part for line in lines for part in re.split(r"[,;|、，；\n]", line)]
    if field.shape == "list" and len(texts) == 1:
        return items(texts[0])
    return [part for text in texts for part in (items(text) if _ITEM_BELOW.search(text) else [text])]


def _whole_sentences(text: str) -> str:
    """*text* up to the end of its last complete sentence."""
    ends = [match.end() for match in _SENTENCE_END.finditer(text)]
    return text[: ends[-1]] if ends else ""


def filled(texts: Mapping[str, Sequence[str]], notes: Iterable[tuple[str, str]]) -> Transformation:
    """The transformation that holds *texts*, by field; of those for a single text, the first."""
    given: dict[str, Any] = {
        name: tuple(found) if row.shape == "list" else found[0]
        for name, row in TEXT_FIELDS.items()
        if (found := texts.get(name))
    }
    return Transformation(**given, notes=tuple(notes))
