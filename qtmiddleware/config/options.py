"""Define options and groups of options, as fields and dataclasses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields
from typing import Any, ClassVar, Final, Literal, dataclass_transform

META: Final = "option"
"""The key of an option's meaning and limits in the metadata of the dataclass field."""

NAMES: Final = "names"
"""The key of a mapping's allowed names in the metadata of the dataclass field."""

MARKS: Final = "marks"
"""The key of an option's `Mark` words in the metadata of the dataclass field."""

Mark = Literal["reply", "model", "middleware", "named"]
"""A word that says what an option changes.

- ``reply``: the texts in a model's reply. The option is part of the cache key.
- ``model``: the object that calls the language model.
- ``middleware``: the whole middleware. A single call cannot change the option.
- ``named``: where texts and keys are sent, which code runs, which files are written, or a model's
  instructions. Because a stranger's config could abuse such an option, the command line rejects it
  in a file that the user did not name.
"""


def define_option(
    default: Any, doc: str, *, marks: str = "", names: Iterable[str] = (), **limits: Any
) -> Any:
    """Return a dataclass field for one option.

    Args:
        default: the default value.
        doc: the meaning of the option.
        marks: `Mark` words, separated by spaces.
        names: the allowed names of a mapping, in snake_case; by default, all names.
        limits: the limits, by pydantic's names: ``ge``, ``le``, ``min_length``. The limits of a
            mapping apply to each of its values.
    """
    meta = {
        META: {"description": doc, **limits},
        MARKS: frozenset(marks.split()),
        NAMES: tuple(names),
    }
    # Each instance gets its own copy of a mapping.
    if isinstance(default, Mapping):
        frozen = dict(default)
        return field(default_factory=lambda: dict(frozen), metadata=meta)
    return field(default=default, metadata=meta)


def define_group(group_class: type[Any], doc: str, *, marks: str = "") -> Any:
    """Return a dataclass field for a group of options.

    Args:
        group_class: the class of the group.
        doc: the meaning of the group.
        marks: `Mark` words, separated by spaces. All options of the group get these marks.
    """
    return field(
        default_factory=group_class,
        metadata={META: {"description": doc}, MARKS: frozenset(marks.split())},
    )


@dataclass_transform(kw_only_default=True, frozen_default=True)
class SettingsGroup:
    """The base class of all groups of settings, which are immutable dataclasses.

    The groups inherit their methods from this class. Frozen dataclasses would compile six methods
    per class at import. For all groups, this would take as long as importing half the package.
    """

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __init_subclass__(cls) -> None:
        dataclass(init=False, repr=False, eq=False)(cls)

    def __init__(self, **values: Any) -> None:
        # The methods are inherited, so Python cannot check the keyword arguments.
        for name in values.keys() - self.__dataclass_fields__.keys():
            raise TypeError(f"{type(self).__name__} has no option {name!r}")
        vars(self).update(
            (field.name, values[field.name] if field.name in values else get_default(field))
            for field in fields(self)
        )

    def __eq__(self, other: object) -> bool:
        return vars(self) == vars(other) if type(other) is type(self) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}"
            f"({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"
        )

    def __setattr__(self, name: str, _: object) -> None:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> None:
        raise FrozenInstanceError(f"cannot delete field {name!r}")


def get_default(field: Field[Any]) -> Any:
    """Return the default of a settings field."""
    return field.default if field.default_factory is MISSING else field.default_factory()
