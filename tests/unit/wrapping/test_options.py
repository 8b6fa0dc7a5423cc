"""A misspelt option is refused, wherever options are taken by name, and the message says what to write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest

import qtmiddleware as qtm
from qtmiddleware.kit.evaluation import ask_systems, compare

middleware: Final[Any] = qtm.middleware
qm: Final[Any] = qtm.QueryMiddleware()


def search(query: str, top_k: int = 4) -> list[Any]:
    return []


TAKERS: Final[dict[str, Callable[..., Any]]] = {
    "decorator": lambda **options: middleware(search, **options),
    "decorator with parentheses": lambda **options: middleware(**options),
    "wrap": lambda **options: qm.wrap(search, **options),
    "transform": lambda **options: qm.transform("a question", **options),
    "compare": lambda **options: compare(search, {"q": "a question"}, {"q": {"a": 1}}, **options),
    "compare of a wrapped one": lambda **options: compare(
        qm.wrap(search), {"q": "a"}, {"q": {"a": 1}}, **options
    ),
    "ask_systems": lambda **options: ask_systems(search, "a question", **options),
}


@pytest.mark.parametrize(
    ("taker", "name", "meant"),
    [
        ("decorator", "topk_arg", "top_k_arg"),
        ("wrap", "topk_arg", "top_k_arg"),
        ("transform", "historyy", "history"),
        ("compare", "topk", "top_k"),
        ("compare of a wrapped one", "argumens", "arguments"),
        ("ask_systems", "argumnts", "arguments"),
    ],
)
def test_the_nearest_option_is_named(taker: str, name: str, meant: str) -> None:
    with pytest.raises(TypeError, match=rf"has no option '{name}'; did you mean {meant}\?$"):
        TAKERS[taker](**{name: "how_many"})


@pytest.mark.parametrize(
    ("taker", "name", "place"),
    [
        ("decorator", "transformationType", 'config={"transformationType": "..."}'),
        ("decorator", "candidates", 'config={"keywordEvidence": {"candidates": "..."}}'),
        (
            "decorator",
            "method",
            'config={"fusion": {"method": "..."}} or {"hybrid": {"method": "..."}}',
        ),
        ("transform", "escalation", 'config={"escalation": "..."}'),
        ("wrap", "rerank", 'the config of QueryMiddleware: {"rerank": "..."}'),
    ],
)
def test_a_setting_is_sent_to_the_config(taker: str, name: str, place: str) -> None:
    with pytest.raises(TypeError) as caught:
        TAKERS[taker](**{name: "rewrite"})
    assert str(caught.value).endswith(
        f"has no option '{name}'; it is a setting: put it into {place}"
    )


def test_an_option_of_the_middleware_is_sent_there() -> None:
    with pytest.raises(
        TypeError, match=r"wrap\(\) has no option 'client'; it is an option of QueryMiddleware"
    ):
        qm.wrap(search, client=search)


def test_a_key_is_sent_to_the_environment_and_not_repeated() -> None:
    with pytest.raises(TypeError, match="in the environment") as caught:
        middleware(search, api_key="sk-strayed0123456789")
    assert "strayed" not in str(caught.value)
