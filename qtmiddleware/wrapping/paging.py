"""Find the argument with which a call selects a page of results.

If a call selects a page, qtmiddleware must not add or drop passages. Otherwise, someone who reads
all pages would see some passages twice and miss others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import date
from inspect import Parameter
from typing import Any, Final, Literal, Protocol

PageArgument = str | Literal[False] | None
"""The name of the argument that selects a page of results.

``False`` means that no argument selects a page. ``None`` means that `Paging` looks for such an
argument.
"""

# In lower case and without underscores.
_NAMES: Final = frozenset(
    ("offset", "skip", "start", "page", "cursor", "pagetoken", "nexttoken", "after")
)
_BEGINNING: Final = "pag"


class Parameters(Protocol):
    """The methods and attributes of `signatures.Parameters` that this module uses."""

    named: dict[str, Parameter]
    has_var_keyword: bool

    def read_value(
        self, parameter_name: str, args: Sequence[Any], kwargs: Mapping[str, Any], /
    ) -> Any:
        """Return the value that a call passes for *parameter_name*, or else the default."""


class Paging:
    """Finds the argument with which calls of one function select a page of results.

    Args:
        parameters: reads the function's parameters and the values that calls pass.
        page_argument: the user's choice: a parameter's name, ``None`` or ``False``. See
            `PageArgument`.
        other_parameters: the parameters of the query and of the number of passages, which never
            select a page.
    """

    __slots__ = ("_declared", "_named", "_parameters", "is_open")

    def __init__(
        self,
        parameters: Parameters,
        page_argument: PageArgument,
        other_parameters: Collection[str],
    ) -> None:
        self._parameters = parameters
        self._named = page_argument
        self._declared = tuple(
            name
            for name in parameters.named
            if name not in other_parameters and _is_page_name(name) and not self.is_set_by_user
        )
        # Whether only some calls can show that the function has pages, because its signature does
        # not show it.
        self.is_open = parameters.has_var_keyword and not self._declared and not self.is_set_by_user

    @property
    def is_set_by_user(self) -> bool:
        """Whether the user named the page argument, or said that the function has none."""
        return self._named is not None

    def find_page_argument(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """Return the name of the argument that selects a page in this call, or ``""``.

        A parameter in the signature selects a page even if a call omits it: the first one.
        """
        if self._named is not None:
            return self._named or ""
        for name in self._declared:
            if _can_select_page(self._parameters.read_value(name, args, kwargs)):
                return name
        if self.is_open:
            for name, value in kwargs.items():
                if value is not None and _is_page_name(name) and _can_select_page(value):
                    return name
        return ""


def _is_page_name(name: str) -> bool:
    folded = name.replace("_", "").lower()
    return folded in _NAMES or folded.startswith(_BEGINNING)


def _can_select_page(value: Any) -> bool:
    """Return whether *value* can select a page: it is no switch, date or database cursor."""
    return not issubclass(type(value), bool | date) and not hasattr(type(value), "execute")
