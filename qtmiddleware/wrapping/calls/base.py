"""What the signature of a function tells about the calls of it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final

from qtmiddleware.errors import WrapError

QUERIES: Final = (
    *("query", "question", "q", "text", "search_query", "query_text", "user_query", "prompt", "message", "input"),
)
VECTORS: Final = ("vector", "query_vector", "embedding", "query_embedding", "vec", "emb")
TOP_KS: Final = ("top_k", "topk", "topK", "k", "limit", "n_results", "num_results", "n", "size", "max_results")

Place = tuple[str, int | None]
"""A parameter's name and the position it may be passed at."""

_BY_POSITION: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_MANY: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_ANYTHING: Final = inspect.signature(lambda *args, **kwargs: None).parameters  # noqa: ARG005
_TEXT_TYPES: Final = (str, str | None, "str", "str | None", "Optional[str]")


class Function:
    """One function's parameters, and what is known of it without calling it."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        fn = fn.__func__ if isinstance(fn, (staticmethod, classmethod)) else fn
        if not callable(fn):
            raise WrapError(f"a {type(fn).__qualname__} cannot be called; wrap its method that searches")
        inner = fn.func if isinstance(fn, functools.partial) else fn
        every = _parameters(fn)
        self.name: str = getattr(inner, "__qualname__", type(inner).__qualname__)
        self._module = str(getattr(inner, "__module__", ""))
        self.parameters = {name: p for name, p in every.items() if p.kind not in _MANY}
        self.any_keyword = any(p.kind is p.VAR_KEYWORD for p in every.values())
        self._any_position = any(p.kind is p.VAR_POSITIONAL for p in every.values())
        self._inner = _parameters(inner)
        self._fixed: Mapping[str, Any] = fn.keywords if isinstance(fn, functools.partial) else {}
        by_position = [name for name, p in self.parameters.items() if p.kind in _BY_POSITION]
        self._places = {name: index for index, name in enumerate(by_position)}
        self._first = int(by_position[:1] in (["self"], ["cls"]))
        self._positional = by_position[self._first :]
        self._unfixed = self.parameters.keys() - self._fixed.keys() - {"self", "cls"}

    @property
    def is_loose(self) -> bool:
        """Whether only ``*args`` or ``**kwargs`` can hold the query."""
        named = not self._unfixed.isdisjoint((*self._positional, *QUERIES, *VECTORS))
        return (self._any_position or self.any_keyword) and not named

    @property
    def searches(self) -> bool:
        """Whether this is Pinecone's search, which takes the text inside ``inputs`` or ``query``, by keyword only."""
        return {"inputs", "namespace"} <= self.parameters.keys() and not self._positional

    @property
    def _is_pinecone_query(self) -> bool:
        """Whether this is the query of Pinecone's synchronous index, which shows no parameters and takes a vector."""
        return self.is_loose and self.name.endswith(".query") and self._module.startswith("pinecone.")

    def argument(self, query_arg: str | None, takes_vector: bool) -> str:
        """The parameter that holds the query, with dots for what lies inside it."""
        if query_arg is not None:
            self._check_known(query_arg.partition(".")[0], "query_arg")
            return self._free(query_arg)
        if "score_by" in self.parameters:
            raise self._refused(
                "searches documents by score_by=; wrap a function of your own that takes the text and makes that of it"
            )
        if self.searches and not takes_vector:
            return self._free("query") and self._free("inputs.text")
        for name in (*VECTORS, *QUERIES) if takes_vector else QUERIES:
            if name in self._inner:
                return self._free(name)
        return self._first_positional(takes_vector)

    def top_k(self, top_k_arg: str | None) -> str | None:
        """The parameter that holds top_k, ``None`` where none is seen."""
        if top_k_arg is not None:
            self._check_known(top_k_arg, "top_k_arg")
            return top_k_arg
        return next((name for name in TOP_KS if name in self.parameters), None)

    def sources(self, name: str, *, searches: bool, takes_vector: bool, named: bool) -> tuple[Place, ...]:
        """Where a call may hold the query, in the order they are looked at; *named* where the caller named it."""
        own = (name, self.place(name))
        nested: tuple[Place, ...] = (("query", None), ("inputs", None))
        if searches:
            return (*nested, ("", self._first))
        if takes_vector:
            texts = tuple((text, self.place(text)) for text in QUERIES if text in self.parameters and text != name)
            return (*texts, own, *nested, *((("", self._first),) if own[1] is None and not self.is_loose else ()))
        if self.is_loose:
            return (own, *((text, None) for text in QUERIES), nested[1])
        if self.any_keyword and not named and name not in QUERIES:  # only guessed, and **kwargs may hold a better one
            return (*((text, None) for text in QUERIES), own)
        return (own, ("", self._first)) if not self._positional and not self._any_position else (own,)

    def keyword_home(self, name: str, *, takes_vector: bool, named: bool) -> str:
        """The keyword a query moves to that was passed where the function itself has no place for it; or ``""``.

        A method called ``query`` that shows no parameters is taken for Pinecone's, which is keyword-only.
        """
        if self.place(name) is not None or not (takes_vector or not self._positional):
            return ""
        if self.is_loose:
            return name if takes_vector and (named or self.name.rpartition(".")[2] == "query") else ""
        return name

    def keeps_text(self, where: str | int) -> bool:
        """Whether the text at *where* has a parameter of its own, beside the vector's."""
        if self.searches:
            return False
        name = where if isinstance(where, str) else next((n for n, i in self._places.items() if i == where), "")
        return name in self.parameters

    def place(self, name: str) -> int | None:
        """The position parameter *name* may be passed at."""
        return self._places.get(name)

    def default(self, name: str) -> Any:
        """The default of parameter *name*, ``None`` where it has none."""
        parameter = self.parameters.get(name)
        return None if parameter is None or parameter.default is parameter.empty else parameter.default

    def passed(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """What a call gives parameter *name*, its default included."""
        if name in kwargs:
            return kwargs[name]
        index = self._places.get(name)
        return args[index] if index is not None and index < len(args) else self.default(name)

    def assign(self, name: str, value: Any, args: list[Any], kwargs: dict[str, Any]) -> None:
        """Pass *value* as parameter *name*, in the place it is passed at already where there is one."""
        index = self._places.get(name)
        if name not in kwargs and index is not None:
            if index < len(args):
                args[index] = value
                return
            if self.parameters[name].kind is inspect.Parameter.POSITIONAL_ONLY:
                args.extend(self.default(between) for between in list(self._places)[len(args) : index])
                args.append(value)
                return
        kwargs[name] = value

    def _first_positional(self, takes_vector: bool) -> str:
        free = [name for name in self._positional if name not in self._fixed]
        chosen = next(iter(free if takes_vector else sorted(free, key=self._unlike_text)), None)
        if not takes_vector and (
            chosen in VECTORS
            or (chosen is None and (self._is_pinecone_query or not self.parameters.keys().isdisjoint(VECTORS)))
        ):
            raise self._refused("takes a vector and no text; pass embed=, a function that turns a text into its vector")
        if chosen is not None:
            return chosen
        if self.is_loose:
            return "vector" if takes_vector else "query"
        raise self._refused(f"has no parameter that could be the query; name it with query_arg= ({self._listed()})")

    def _unlike_text(self, name: str) -> int:
        """0 for a parameter that must be given and is annotated as text, 1 where nothing speaks against it, else 2."""
        parameter = self.parameters[name]
        if parameter.annotation is parameter.empty:
            return 1
        if parameter.annotation not in _TEXT_TYPES:
            return 2
        return 0 if parameter.default is parameter.empty else 1

    def _free(self, argument: str) -> str:
        """*argument*, unless a partial holds it already."""
        name = argument.partition(".")[0]
        if name in self._fixed or (name in self._inner and name not in self.parameters):
            raise self._refused(f"is a partial that already fixes {name!r}; leave the query out of it")
        return argument

    def _check_known(self, name: str, option: str) -> None:
        if name in self.parameters or name in self._inner or self.any_keyword:
            return
        near = get_close_matches(name, self.parameters, 1)
        hint = f"did you mean {near[0]!r}?" if near else self._listed()
        raise self._refused(f"has no parameter {name!r}, which {option}= names; {hint}")

    def _listed(self) -> str:
        return "its parameters are: " + (", ".join(self.parameters) or "none")

    def _refused(self, why: str) -> WrapError:
        return WrapError(f"{self.name}() {why}")


def _parameters(fn: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(fn).parameters
    except (ValueError, TypeError):  # some builtins tell nothing
        return _ANYTHING
