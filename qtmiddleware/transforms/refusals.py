"""Recognising a model that says it will not do its task, in the languages it may say so."""

from __future__ import annotations

from typing import Final

from qtmiddleware.transforms.wording import opening_of, opens_with

_SORRY: Final = r"(?:i(?:'m| am) (?:very |so |truly |really )?sorry|sorry|i apologi[sz]e|my apologies|unfortunately)"
_UNABLE: Final = (
    r"i(?:'m| am)?,? ?(?:also |really |just )?(?:can't|cannot|can not|won't|will not|couldn't|unable to|not able to|"
    r"not going to|must decline to|have to decline to)"
)
_TASK: Final = (
    r"(?:help|assist|comply|fulfil|fulfill|provide|rewrite|rephrase|paraphrase|generate|answer|do that|do this|process|"
    r"create|produce|write|respond|discuss|engage|support|continue|offer|share|give|complete|participate|decompose)"
)
REFUSALS: Final = (
    # English
    rf"{_SORRY}[.!,]? ?$",
    rf"{_SORRY}[,.;:!]? (?:but |that )?(?:i |as an ai)",
    rf"{_SORRY}[,.;:!]? .{{0,40}}\b{_UNABLE}",
    rf"{_UNABLE} (?:\w+ )?{_TASK}\b",
    r"as an? (?:ai|artificial intelligence|(?:large )?language model|assistant)\b",
    r"i(?:'m| am) (?:just |only )?an? (?:ai|(?:large )?language model)\b",
    r"(?:this|that|your|the) (?:request|query|question|content|prompt) (?:violates|goes against|is against)",
    r"i (?:don't|do not) (?:have (?:access|enough|real-time|the ability|any information)|feel comfortable)",
    r"i must (?:respectfully )?decline|request (?:blocked|denied|refused)|content (?:filter|policy)",
    # French
    r"(?:je suis|nous sommes) desole|desole,|je ne (?:peux|suis pas|puis)",
    r"en tant qu'(?:ia|assistant|intelligence|modele)",
    # German
    r"es tut mir (?:sehr )?leid|(?:entschuldigung|tut mir leid),|ich kann (?:dir |ihnen |dabei |das |diese )",
    r"als (?:ki|sprachmodell)\b",
    # Spanish
    r"lo (?:siento|lamento)|disculpa|no puedo (?:ayudar|proporcionar|responder|cumplir)",
    r"como (?:una? )?(?:ia\b|modelo de lenguaje|inteligencia)",
    # Italian
    r"mi dispiace|non posso (?:aiutar|fornire|rispondere|soddisfare)|come (?:ia\b|modello linguistico|intelligenza)",
    # Portuguese
    r"sinto muito|desculpe|(?:eu )?nao posso (?:ajudar|fornecer|responder|atender)",
    r"como (?:um )?(?:modelo de linguagem|assistente)",
    # Dutch
    r"het spijt me|sorry, (?:maar )?ik|ik kan (?:je |u |daar|hier|niet )|als (?:ai|taalmodel)\b",
    # Polish and Turkish
    r"przykro mi|przepraszam,|nie moge (?:pomoc|tego|odpowiedziec)|jako (?:model jezykowy|ai\b)",
    r"uzgunum|bu konuda yardimci olamam|bir yapay zeka",
    # Russian
    r"извините|к сожалению, я|простите, но|я не могу (?:помочь|предоставить|ответить|выполнить)",
    r"как (?:языковая модель|ии)\b",
    # Chinese
    r"(?:很|非常|十分)?(?:抱歉|对不起|對不起)|作为(?:一个|一名)?(?:ai|人工智能|语言模型)",
    r"我(?:无法|不能|無法)(?:协助|提供|回答|帮助|满足|協助|處理|处理|完成)",
    # Japanese and Korean; their syllables come out of the folding in one piece
    r"申し訳|すみませんか|すみませんが|ごめんなさい|お手伝いできません|お答えできません|aiとして",
    r"죄송|도와드릴 수 없|답변(?:해 )?드릴 수 없|ai로서",
    # Arabic, Hindi and Hebrew
    r"عذرا|آسف|أعتذر|اسف|(?:لا أستطيع|لا يمكنني) (?:المساعدة|تقديم|الإجابة)|كنموذج لغ",
    r"मुझे खेद|क्षमा करें|माफ़ कीजिए",
    r"מצטער|אני לא יכול",
)
"""How a folded text opens that refuses, as patterns."""
_REFUSAL: Final = opening_of(REFUSALS)


def is_refusal(text: str, query: str) -> bool:
    """Whether *text* opens as a model does that will not do its task, in words that *query* does not hold itself."""
    return opens_with(_REFUSAL, text, query)
