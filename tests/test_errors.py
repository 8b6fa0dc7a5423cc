"""The error tree."""

from __future__ import annotations

import builtins
import copy
import inspect
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qtmiddleware import errors

CLASSES = {
    name: cls
    for name, cls in vars(errors).items()
    if inspect.isclass(cls) and issubclass(cls, Exception) and cls.__module__ == errors.__name__
}
ROW = re.compile(r"^\s*[├└]── (?P<name>\w+)(?: \((?P<also>\w+)\))?\s+\S", re.MULTILINE)

EXAMPLES: list[errors.QtMiddlewareError] = [
    errors.QtMiddlewareError("base"),
    errors.ConfigError("bad", path="fusion.rrfK", value=-1, allowed=">= 1", source="call"),
    errors.InvalidQuery("blank", argument="question"),
    errors.WrapError("no"),
    errors.ResponseShapeError("no matches", shape="builtins.int"),
    errors.MissingExtra("numpy", "local"),
    errors.ModelError("timeout", "no answer in 5 s"),
    errors.ModelError("refused"),
    errors.EmbeddingError("no vector"),
    errors.StoreError("locked"),
    errors.UnreadableDocument(Path("a.pdf"), "encrypted", "AES"),
]


def test_the_tree_is_the_one_that_is_described() -> None:
    assert errors.__doc__ is not None
    described = {row["name"]: row["also"] for row in ROW.finditer(errors.__doc__)}
    assert set(described) | {"QtMiddlewareError"} == set(CLASSES)
    for name, also in described.items():
        bases = {errors.QtMiddlewareError} | ({getattr(builtins, also)} if also else set())
        assert set(CLASSES[name].__bases__) == bases


def test_every_error_says_what_it_means() -> None:
    assert all(cls.__doc__ for cls in CLASSES.values())


def test_every_class_has_an_example_here() -> None:
    assert {type(it) for it in EXAMPLES} == set(CLASSES.values())


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda it: type(it).__name__)
def test_an_error_survives_the_way_between_processes(error: errors.QtMiddlewareError) -> None:
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(other) is type(error)
        assert str(other) == str(error)
        assert vars(other) == vars(error)


def test_a_missing_extra_names_the_command() -> None:
    error = errors.MissingExtra("numpy", "local")
    assert 'pip install "qtmiddleware[local]"' in str(error)
    assert "numpy" in str(error)
    assert (error.package, error.extra) == ("numpy", "local")


def test_a_model_error_without_a_message_says_its_reason() -> None:
    assert (str(errors.ModelError("refused")), errors.ModelError("refused").reason) == ("refused", "refused")


def test_the_details_are_kept() -> None:
    error = errors.ConfigError("bad", path="topK", value=0, allowed=">= 1", source="environment")
    assert (error.path, error.value, error.allowed, error.source) == ("topK", 0, ">= 1", "environment")
    assert errors.InvalidQuery("blank").argument == "query"
    assert errors.ResponseShapeError("odd", shape="int").shape == "int"


@given(st.text(st.characters()), st.one_of(st.none(), st.text(st.characters()), st.floats(), st.binary()))
def test_an_error_can_always_be_shown(text: str, value: Any) -> None:
    shown = [
        errors.ConfigError(text, path=text, value=value),
        errors.InvalidQuery(text, argument=text),
        errors.MissingExtra(text, text),
        errors.ModelError(text, text),
        errors.ResponseShapeError(text, shape=text),
        *(cls(text) for cls in (errors.WrapError, errors.EmbeddingError, errors.StoreError)),
    ]
    for error in shown:
        assert isinstance(str(error), str)
        assert isinstance(repr(error), str)


def test_a_value_that_may_be_a_secret_is_not_shown() -> None:
    assert "sk-123" not in str(errors.ConfigError("api key is no setting", value="sk-123"))


def test_an_error_of_a_store_is_an_outage_where_its_cause_is_one() -> None:
    class Busy(Exception):
        status_code = 429

    class PineconeConnectionError(Exception):
        """As the client names it."""

    class Refused(Exception):
        status_code = 400

    def caused(cause: BaseException | None) -> errors.StoreError:
        error = errors.StoreError("it could not be searched")
        error.__cause__ = cause
        return error

    for cause in (Busy(), TimeoutError(), PineconeConnectionError()):
        assert errors.is_outage(cause)
        assert errors.is_outage(caused(cause))
    for other in (Refused(), None):
        assert not errors.is_outage(caused(other))
