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

import qtmiddleware as qtm
from qtmiddleware import errors

CLASSES = {
    name: cls
    for name, cls in vars(errors).items()
    if inspect.isclass(cls) and issubclass(cls, Exception) and cls.__module__ == errors.__name__
    if not issubclass(cls, Warning)
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
    errors.EngineError("its workers died"),
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


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda it: type(it).__name__)
def test_an_error_survives_the_way_between_processes(error: errors.QtMiddlewareError) -> None:
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(other) is type(error)
        assert str(other) == str(error)
        assert vars(other) == vars(error)


def raise_while_handling(error: Exception, *cause: BaseException | None) -> None:
    """Raise *error* from *cause*, where one is given, while another one is being handled."""
    try:
        raise ValueError("sk-secret")
    except ValueError:
        if cause:
            raise error from cause[0]
        raise error  # noqa: B904


@pytest.mark.parametrize("cls", CLASSES.values(), ids=lambda it: it.__name__)
def test_what_was_being_handled_is_gone_where_an_error_says_so(
    cls: type[errors.QtMiddlewareError],
) -> None:
    example = next(it for it in EXAMPLES if type(it) is cls)
    for cause in (None, OSError("a cause that is told")):
        with pytest.raises(cls) as caught:
            raise_while_handling(copy.copy(example), cause)
        assert caught.value.__context__ is None
        assert caught.value.__cause__ is cause
        # Not where Python itself keeps it either, for those who walk it without asking the error.
        assert vars(BaseException)["__context__"].__get__(caught.value) is None


@given(
    st.floats()
    | st.integers()
    | st.text(max_size=5)
    | st.none()
    | st.binary(max_size=3)
    | st.booleans()
)
def test_a_pause_that_a_users_own_model_names_is_one_of_at_most_ten_minutes_or_none(
    named: Any,
) -> None:
    pause = errors.build_safe_error(
        qtm.ModelError("rate_limited", retry_after=named), "the model"
    ).retry_after
    assert pause is None or 0 <= pause <= errors.LONGEST_PAUSE
    if isinstance(named, float) and 0 <= named <= errors.LONGEST_PAUSE:
        assert pause == named
