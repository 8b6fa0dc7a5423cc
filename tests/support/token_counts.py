"""Texts of many kinds, and a real tokenizer to count their tokens with."""

from __future__ import annotations

import base64
import random
from collections.abc import Callable
from pathlib import Path

import pytest

SAMPLES = {
    "arabic": "يأتي هذا المنتج مع ضمان لمدة عامين. يمكن إرجاع البضائع.",
    "base64": base64.b64encode(random.Random(1).randbytes(3_000)).decode(),
    "chinese": "请问退货政策是什么？客户可以在三十天内退回商品。",
    "czech": "Zboží lze vrátit do třiceti dnů, pokud je nepoškozené.",
    "dutch": "Een arbeidsongeschiktheidsverzekering is verplicht voor zelfstandigen.",
    "emoji": "👍🏽🎉 ok 👩‍👩‍👧",
    "english": "The quick brown fox jumps over the lazy dog; returns are accepted within thirty days.",
    "finnish": "Palautusoikeus koskee verkkokaupan tilauksia, epäjärjestelmällisyydestä huolimatta.",
    "german": "Die Rückgabefrist beträgt dreißig Tage, auch bei Geschwindigkeitsbegrenzungen.",
    "greek": "Το προϊόν συνοδεύεται από εγγύηση δύο ετών.",
    "hebrew": "המוצר מגיע עם אחריות לשנתיים.",
    "hex": random.Random(1).randbytes(3_000).hex(),
    "hindi": "यह उत्पाद दो साल की वारंटी के साथ आता है।",
    "japanese": "この製品の保証期間は二年間です。お問い合わせください。",
    "korean": "이 제품의 보증 기간은 2년입니다. 문의해 주세요.",
    "numbers": "On 2024-05-17 at 12:30:59, 1,234,567.89 EUR were paid (+3.75 %) to DE89370400440532013000.",
    "polish": "Zwrot towaru jest możliwy w ciągu trzydziestu dni; źdźbło trawy.",
    "russian": "Быстрая коричневая лиса перепрыгивает через ленивую собаку. Предъявите документы.",
    "shouting": "WARNING: DO NOT REMOVE THIS LABEL. CONTAINS HAZARDOUS MATERIALS.",
    "table": "| name | unit |\n|------|------|\n| mass | kg   |\n\n\t\tEnd\n",
    "thai": "ผลิตภัณฑ์นี้มีการรับประกันสองปี",
    "turkish": "İade süresi otuz gündür, müşterilerimizdenmişsiniz.",
    "vietnamese": "Sản phẩm này có bảo hành hai năm.",
}


def load_tokenizer() -> Callable[[str], list[int]]:
    """What makes tokens of a text as cl100k_base does, whose file llama-index-core brings along."""
    import llama_index.core as core
    import tiktoken

    folder = Path(core.__file__).parent / "_static" / "tiktoken_cache"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIKTOKEN_CACHE_DIR", str(folder))
        encoding = tiktoken.get_encoding("cl100k_base")
    return lambda text: encoding.encode(text, disallowed_special=())  # type: ignore[no-any-return]
