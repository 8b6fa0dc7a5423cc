"""What is said where there is no answer and the model said nothing itself."""

from __future__ import annotations

from typing import Final

from qtmiddleware.preprocessing import detect_language

_NOT_THERE: Final = {
    "de": "Die Textstellen enthalten nicht genug Informationen für eine Antwort.",
    "en": "The passages do not hold enough information for an answer.",
    "es": "Los pasajes no contienen información suficiente para una respuesta.",
    "fr": "Les passages ne contiennent pas assez d'informations pour une réponse.",
    "it": "I passaggi non contengono informazioni sufficienti per una risposta.",
    "nl": "De passages bevatten niet genoeg informatie voor een antwoord.",
    "pt": "As passagens não contêm informações suficientes para uma resposta.",
}


def not_there(question: str) -> str:
    """One sentence that says the passages do not hold the answer, in the language of *question* where it is known."""
    return _NOT_THERE.get(detect_language(question), _NOT_THERE["en"])
