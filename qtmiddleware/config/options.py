"""What an option and a group of options are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields
from typing import Any, ClassVar, Final, Literal, dataclass_transform

META: Final = "option"
"""The metadata key under which a field keeps its meaning and limits."""

MARKS: Final = "marks"
"""The metadata key under which a field keeps what depends on it."""

Mark = Literal["reply", "model", "middleware", "named"]
"""What depends on an option: the texts a model replies with (their cache key), the model object that is made, or what
belongs to the whole middleware and cannot be changed by one call. One that is ``named`` decides
where texts and keys go, what is run or written, or a model's instructions: the command line rejects
it in a file that nobody named."""


def option(default: Any, doc: str, *, marks: str = "", **limits: Any) -> Any:
    """Returns a field with its *default*, its meaning and the limits pydantic knows (``ge``, ``le``, ``min_length``).

    *marks* are `Mark` words with blanks between them.
    """
    meta = {META: {"description": doc, **limits}, MARKS: frozenset(marks.split())}
    if isinstance(default, Mapping):
        frozen = dict(default)
        return field(default_factory=lambda: dict(frozen), metadata=meta)
    return field(default=default, metadata=meta)


def group(cls: type[Any], doc: str, *, marks: str = "") -> Any:
    """Returns a field that holds a group of options; its *marks* are those of all of them."""
    return field(
        default_factory=cls, metadata={META: {"description": doc}, MARKS: frozenset(marks.split())}
    )


@dataclass_transform(kw_only_default=True, frozen_default=True)
class SettingsGroup:
    """What every group of settings is: a dataclass of keyword arguments whose values stay as they are.

    Its methods are written here once. A frozen dataclass would generate and compile six for each of
    the twenty groups whenever a process starts, which takes as long as the imports of half the
    package.
    """

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __init_subclass__(cls) -> None:
        dataclass(init=False, repr=False, eq=False)(cls)

    def __init__(self, **values: Any) -> None:
        for name in values.keys() - self.__dataclass_fields__.keys():
            raise TypeError(f"{type(self).__name__} has no option {name!r}")
        self.__setstate__(values)

    def __eq__(self, other: object) -> bool:
        return vars(self) == vars(other) if type(other) is type(self) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"

    def __setattr__(self, name: str, _: object) -> None:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> None:
        raise FrozenInstanceError(f"cannot delete field {name!r}")

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled: every value by its name, so that another version with other options can read it."""
        return dict(vars(self))

    def __setstate__(self, values: Mapping[str, Any] | list[Any]) -> None:
        """Take *values*, as of a pickle; an option that they lack gets its default.

        The first pickles hold a list in the order of the fields, so a new option belongs at the end
        of its group.
        """
        known = fields(self)
        if not isinstance(values, Mapping):
            values = {it.name: value for it, value in zip(known, values, strict=False)}
        vars(self).update(
            (it.name, values[it.name] if it.name in values else default_of(it)) for it in known
        )


def default_of(field: Field[Any]) -> Any:
    """Return the default of a settings field."""
    return field.default if field.default_factory is MISSING else field.default_factory()


def make_group(name: str, doc: str, module: str, options: Mapping[str, tuple[Any, Any]]) -> Any:
    """Return a group of *module* whose *options*, each a type and a field, are derived from rows of the catalogue."""
    kinds = {option: kind for option, (kind, _) in options.items()}
    defaults = {option: default for option, (_, default) in options.items()}
    return type(
        name,
        (SettingsGroup,),
        {"__module__": module, "__doc__": doc, "__annotations__": kinds, **defaults},
    )
