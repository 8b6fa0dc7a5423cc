"""The layout of SQuAD: articles with paragraphs, and questions that were written on each of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from benchmarks.outside.collection import Collection, clean


def paragraphs(articles: Iterable[Mapping[str, Any]]) -> Collection:
    """Each paragraph a passage, the one a question was written on relevant; questions of a known id are left out."""
    made = Collection()
    ids: dict[str, str] = {}
    for article in articles:
        title = clean(article.get("title", ""))
        for paragraph in article["paragraphs"]:
            text = clean(paragraph["context"])
            id_ = ids.setdefault(text, f"p{len(ids)}")
            made.passages.setdefault(id_, (title, text))
            for asked in paragraph["qas"]:
                if asked["question"].strip() and str(asked["id"]) not in made.questions:
                    made.ask(str(asked["id"]), clean(asked["question"]), {id_: 1})
    return made
