"""What is known before anything was searched: questions no model could better, and settings that ask none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from qtmiddleware.config.settings import Settings

_SMALL_TALK: Final = frozenset(
    {
        "hi", "hello", "hey", "hi there", "hello there", "good morning", "good afternoon", "good evening", "good night",
        "bye", "goodbye", "thanks", "thank you", "thanks a lot", "thank you very much", "thx", "ok", "okay", "sure",
        "yes", "no", "yep", "nope", "cool", "great", "nice", "please", "test",
        "hola", "gracias", "muchas gracias", "buenos dias", "buenos días", "adios", "adiós", "si", "sí", "vale",
        "hallo", "guten tag", "guten morgen", "danke", "vielen dank", "tschüss", "ja", "nein", "moin",
        "bonjour", "salut", "merci", "merci beaucoup", "au revoir", "oui", "non", "d'accord",
        "ciao", "buongiorno", "grazie", "grazie mille", "arrivederci", "va bene",
        "olá", "ola", "bom dia", "obrigado", "obrigada", "tchau", "sim", "não",
        "hoi", "goedemorgen", "dank je", "bedankt", "dank u", "tot ziens", "nee",
    }
)  # fmt: skip


def nothing_to_transform(query: str, literals: Sequence[str]) -> str:
    """Why no rewriting could make *query* a better search, as one word; ``""`` where one might.

    A greeting asks for nothing, and what consists of *literals* alone (codes, numbers, addresses) is searched best as
    it is written.
    """
    if " ".join(query.casefold().replace("’", "'").strip(" \t\r\n.!?,;:…¡¿").split()) in _SMALL_TALK:
        return "small_talk"
    rest = query
    for literal in sorted(literals, key=len, reverse=True):
        rest = rest.replace(literal, " ")
    if literals and not any(character.isalnum() for character in rest):
        return "only_identifiers"
    return ""


def reason_not_to_ask(
    settings: Settings, query: str, *, is_follow_up: bool, literals: Callable[[], Sequence[str]]
) -> str:
    """Why the model is not asked about *query* whatever the first result says, as one word; ``""`` where it may be.

    *literals* gives the codes, numbers and addresses in it; it is called only where there may be nothing else.
    """
    escalation = settings.escalation
    if settings.transformation_type == "none":
        return "no_transformation"
    if escalation.mode == "never" or escalation.max_llm_calls_per_query == 0:
        return "never"
    if is_follow_up:
        return ""
    is_prose = any(word.isalpha() and word.islower() for word in query.split())
    return nothing_to_transform(query, [] if is_prose else literals())
