"""Find the question, the number of passages and the page in the calls of one function.

Replacements are made in copies, so the caller's arguments never change.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date
from functools import cached_property, partial
from typing import Any, Final, Literal

from qtmiddleware.errors import WrapError
from qtmiddleware.retrieval.fields import (
    BUNDLE,
    read_field,
    read_parameters,
    read_value_at_path,
    replace_value_at_path,
)
from qtmiddleware.runtime.concurrency import is_async
from qtmiddleware.wrapping import clauses
from qtmiddleware.wrapping.clauses import SCORE_BY, NoQuestion

QUERIES: Final = tuple(
    """
    query question q text search_query query_text query_texts user_query prompt message input
    """.split()  # noqa: SIM905
)
VECTORS: Final = tuple(
    """
    vector query_vector embedding query_embedding query_embeddings near_vector vec emb
    """.split()  # noqa: SIM905
)
TOP_KS: Final = tuple(
    """
    top_k k limit n_results num_results n size max_results max_num_results similarity_top_k num_docs
    top_n top match_count number_of_results result_count num_neighbors n_docs max_docs num_documents
    max_documents num_hits max_hits num_matches max_matches num_passages max_passages num_chunks
    max_chunks max_items count hits rows take
    """.split()  # noqa: SIM905
)
"""In any spelling: ``topK`` is ``top_k``."""

PageArgument = str | Literal[False] | None
"""The name of the argument that selects a page of results.

``False`` means that no argument selects a page. ``None`` means that common names do.
"""
Path = tuple[Any, ...]
"""The keyword or position of an argument, and the keys inside the argument."""

_CONTAINERS: Final = (dict, list, tuple, set)
# A container with more items, such as a vector or a list of ids, holds no other containers.
_MOST_ITEMS: Final = 1_000
# What the last word of a name tells: `searchText`, `near_vector`, Milvus's `data`.
_TEXT_WORDS: Final = frozenset(
    ("query", "queries", "question", "text", "texts", "prompt", "message", "input", "keywords")
)
_LISTS_OF_VECTORS: Final = frozenset(("vectors", "embeddings", "data", "queries"))
_VECTOR_WORDS: Final = _LISTS_OF_VECTORS | {"vector", "embedding", "vec", "emb"}
# Words after those: `query_string`, `search_terms`.
_FILLERS: Final = frozenset(("str", "string", "terms"))
# Words of names that tell where to search.
_SCOPES: Final = frozenset(
    ("collection", "index", "namespace", "tenant", "table", "database", "client", "id", "filter")
)
_TEXT_TYPES: Final = (str, str | None, "str", "str | None", "Optional[str]")
_VECTOR_TYPE: Final = re.compile(r"^(?!.*\bstr\b).*(\[\s*float|[Nn][Dd][Aa]rray|Tensor)")
# Names of a page, in lower case and without underscores.
_PAGES: Final = re.compile(r"offset|skip|start|cursor|nexttoken|after|pag.*")
# Pinecone's search takes query={"inputs": {"text": ...}, "top_k": ...} or inputs={"text": ...}.
_INPUTS: Final = "inputs"
_INPUTS_TEXT: Final = (_INPUTS, "text")
# Chroma takes either texts or vectors.
_INSTEAD_OF_VECTORS: Final = "query_texts"
_BY_POSITION: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_VARIADIC: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_ANYTHING: Final = inspect.signature(lambda *args, **kwargs: None).parameters  # noqa: ARG005
_EMPTY: Final = inspect.Parameter.empty


class Binding:
    """Where the question, the number of passages and the page are in the calls of one function.

    The names are of parameters, with dots for a value inside one; the usual ones by default. With
    *takes_vector*, the function takes the question's vector, while its callers pass a text.

    Attributes:
        path: where the function takes the question.
        sources: the keywords and positions at which callers pass it, the likeliest first.
        is_loose: whether only ``*args`` or ``**kwargs`` can hold the question.
        pages: the names of the parameters that select a page.
        may_have_pages: whether the signature leaves open if the function has pages.

    Raises:
        WrapError: if it is unclear which parameter takes the question, or an option names none.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        query_arg: str | None = None,
        top_k_arg: str | None = None,
        page_arg: PageArgument = None,
        takes_vector: bool = False,
    ) -> None:
        inner, fixed = (fn.func, fn.keywords) if isinstance(fn, partial) else (fn, {})
        name: str = getattr(inner, "__qualname__", type(inner).__qualname__)
        self.function_name = name.rpartition(">.")[2]
        self.takes_vector = takes_vector
        self.is_named = query_arg is not None
        # With those that a partial sets.
        self._all = read_parameters_of_any(inner)
        self._sort_parameters(read_parameters_of_any(fn), fixed)
        self._check_names(query_arg=query_arg, top_k_arg=top_k_arg, page_arg=page_arg)
        is_pinecone = str(getattr(inner, "__module__", "")).startswith("pinecone.")
        # Pinecone's method `query` shows no parameters, and takes keywords only.
        self._is_query = self.is_loose and name.endswith(".query")
        if self._is_query and is_pinecone and query_arg is None:
            self._refuse_vectors(VECTORS)
        if self.is_pinecone_search and not takes_vector and query_arg in (None, "query"):
            query_arg = ".".join(_INPUTS_TEXT)
        self.argument = query_arg or self._find_question()
        self.path = tuple(self.argument.split("."))
        root = self.path[0]
        # The clauses that a partial sets only say which fields to search.
        if root in self._all and root not in (*self._free, SCORE_BY):
            raise self._make_error(
                f"is a partial that already sets {root!r}; leave the query out of the partial"
            )
        self.takes_clauses = self.path == (SCORE_BY,)
        self.sources = self._list_sources(root)
        others = [name for name in self.named if name != root]
        self.top_k_argument = top_k_arg or find_top_k_name(others)
        number = (self.top_k_argument or "").partition(".")[0]
        self.is_page_named = page_arg is not None
        self.pages = [page_arg] if page_arg else []
        if page_arg is None:
            self.pages += (name for name in others if name != number and _is_page_name(name))
        self.may_have_pages = self.has_var_keyword and not (self.pages or self.is_page_named)

    def _sort_parameters(
        self, parameters: Mapping[str, inspect.Parameter], fixed: Mapping[str, Any]
    ) -> None:
        """Set what is known of the parameters by name and by position. A partial sets *fixed*."""
        kinds = {parameter.kind for parameter in parameters.values()}
        self.has_var_keyword = _VARIADIC[1] in kinds
        self.named = {
            name: parameter
            for name, parameter in parameters.items()
            if parameter.kind not in _VARIADIC
        }
        by_position = [name for name in self.named if self.named[name].kind in _BY_POSITION]
        self.positions = {name: index for index, name in enumerate(by_position)}
        self._first_position = int(by_position[:1] in (["self"], ["cls"]))
        by_position = by_position[self._first_position :]
        self.takes_positional = bool(by_position) or _VARIADIC[0] in kinds
        self._free = [name for name in self.named if name not in {"self", "cls", *fixed}]
        self._free_by_position = [name for name in by_position if name in self._free]
        is_known = self._free_by_position or not {*QUERIES, *VECTORS}.isdisjoint(self._free)
        self.is_loose = not (kinds.isdisjoint(_VARIADIC) or is_known)
        self._is_keyword_only = not (by_position or self.is_loose)
        self.is_pinecone_search = not by_position and {_INPUTS, "namespace"} <= self.named.keys()

    def _find_question(self) -> str:
        """Return the name of the parameter that takes the question."""
        if SCORE_BY in self.named and self._all.keys().isdisjoint(QUERIES):
            return SCORE_BY
        for name in (*VECTORS, *QUERIES) if self.takes_vector else QUERIES:
            if name in self._all:
                return name
        words = _VECTOR_WORDS if self.takes_vector else _TEXT_WORDS
        names = [name for name in self._free if _split_words(name)[-1] in words]
        if not names:
            self._refuse_vectors(self._free)
            names = [name for name in self._free_by_position if not _has_other_meaning(name)]
        elif all(map(self._is_vector, names)):
            self._refuse_vectors(names)
        # Of several, those of a fitting type, and of these, those that every call passes.
        names = [name for name in names if self._can_take_question(name)] or names
        names = [name for name in names if self.named[name].default is _EMPTY] or names
        if len(names) > 1:
            raise self._make_error(
                f"has several parameters that may be the query ({', '.join(names)}); name the right"
                " one with query_arg="
            )
        if names:
            return names[0]
        if self.is_loose:
            return "vector" if self.takes_vector else "query"
        raise self._make_error(
            "has no parameter that looks like the query; name it with query_arg="
            f" ({self._describe()})"
        )

    def _refuse_vectors(self, names: Iterable[str]) -> None:
        """Raise `WrapError` if one of *names* takes a vector, though no embed= was passed."""
        if not self.takes_vector and any(map(self._is_vector, names)):
            raise self._make_error(
                "takes a vector, not a text; pass embed=, a function from a text to its vector"
            )

    def _can_take_question(self, name: str) -> bool:
        annotation = self.named[name].annotation
        fits = self._is_vector(name) if self.takes_vector else annotation in _TEXT_TYPES
        return fits or annotation is _EMPTY

    def _list_sources(self, name: str) -> Path:
        """Return `sources`, where the function takes the question in the parameter *name*."""
        usual = [*(query for query in QUERIES if query not in self.named), _INPUTS]
        # Callers may pass a question first though the function takes keywords only.
        positions = [self._first_position] if self._is_keyword_only else []
        if self.takes_clauses:
            # A text that a caller passes beside the clauses, unless the function takes it.
            return *(() if self.has_var_keyword else usual), *positions, name
        before: list[str] = []
        if self.takes_vector:
            before = [query for query in QUERIES if query in self.named and query != name]
        elif self.is_pinecone_search:
            before = ["query"]
        elif self.has_var_keyword and not self.is_named and name not in QUERIES:
            # The name is only a guess, so **kwargs may hold a usual one.
            before = usual
        return *before, name, *usual, *positions

    def accepts(self, root: Any) -> bool:
        """Return whether calls of the function may pass an argument by the keyword or position."""
        if isinstance(root, int):
            return self.takes_positional
        return self.has_var_keyword or root in self.named

    def accepts_vector(self, root: Any) -> bool:
        """Return whether *root* may be the place of a vector, as nothing is known of ``*args``."""
        is_anywhere = self.is_loose and not (self._is_query or self.is_named)
        return is_anywhere and isinstance(root, int) and self.takes_positional

    def _is_vector(self, name: str) -> bool:
        return name in VECTORS or bool(_VECTOR_TYPE.search(str(self._all[name].annotation)))

    def _check_names(self, **options: Any) -> None:
        """Raise `WrapError` if one of the *options* names no parameter."""
        for option, path in options.items():
            is_text = isinstance(path, str)
            if path is None or (path is False and option == "page_arg"):
                continue
            name = path.partition(".")[0] if is_text else path
            if not (is_text and (name in self._all or self.has_var_keyword)):
                raise self._make_error(
                    f"has no parameter {name!r}, but {option}= names it; {self._describe()}"
                )

    def _describe(self) -> str:
        return "its parameters are: " + (", ".join(self.named) or "none")

    def _make_error(self, reason: str) -> WrapError:
        return WrapError(f"{self.function_name}() {reason}")

    def make_missing_error(self) -> NoQuestion:
        """Return the error for a call without a question."""
        return NoQuestion(
            f"{self.function_name}() was called without a query; pass it as {self.argument!r}, or"
            " name its parameter with query_arg="
        )

    def read_default(self, name: Any) -> Any:
        """Return the default of *name*, or ``None`` if the parameter has no default."""
        default = self.named[name].default if name in self.named else None
        return None if default is _EMPTY else default


class Arguments:
    """The arguments of one call. They never change: every change returns others."""

    def __init__(self, binding: Binding, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self.binding = binding
        self.args, self.kwargs = args, kwargs

    def read_query(self) -> Any:
        """Return the question; of a list with one text (Chroma), the text.

        Raises `NoQuestion` if the call has none that can be improved.
        """
        value = self.read_passed_query()
        return value[0] if _is_list_of_one_text(value) else value

    def read_passed_query(self) -> Any:
        """Return the question exactly as it is passed, for example as a list with one text."""
        path = self._path
        value = self._get(path)
        if path[0] == SCORE_BY:
            return clauses.read_question(value)
        if value is None and len(path) > 1:
            raise self.binding.make_missing_error()
        return value

    def read_top_k(self) -> int | None:
        """Return the number of passages in effect; ``None`` if it is missing or not an integer."""
        value = self._get(self._number_path)
        # NumPy's integers count too, but `True` is a mistake rather than 1.
        is_number = hasattr(type(value), "__index__") and not isinstance(value, bool)
        return int(value) if is_number else None

    def find_page(self) -> str:
        """Return the name of the argument that selects a page of results, or ``""``.

        A parameter in the signature selects a page even if a call omits it: the first one.
        """
        binding = self.binding
        if binding.is_page_named:
            return "".join(binding.pages)
        names = [*binding.pages]
        if binding.may_have_pages:
            passed = (name for name, value in self.kwargs.items() if value is not None)
            names += filter(_is_page_name, passed)
        for name in names:
            value = self._get((name,))
            # A switch, a date and a database cursor select no page.
            if not (isinstance(value, bool | date) or hasattr(type(value), "execute")):
                return name
        return ""

    def find_iterator(self) -> str:
        """Return the name or position of an argument that can be read only once, or ``""``."""
        for name, value in (*enumerate(self.args), *self.kwargs.items()):
            # Iterators of other modules may be files or database cursors.
            if type(value).__module__ in ("builtins", "itertools") and isinstance(value, Iterator):
                return str(name)
        return ""

    def copy(self) -> Arguments:
        """Return the arguments with copies of the dicts, lists, tuples and sets in them."""
        values = (*self.args, *self.kwargs.values())
        if not any(type(value) in _CONTAINERS for value in values):
            return self
        copies: dict[int, Any] = {}
        try:
            args = [_copy_containers(value, copies) for value in self.args]
            named = {name: _copy_containers(value, copies) for name, value in self.kwargs.items()}
        except RecursionError:
            return self
        return Arguments(self.binding, args, named)

    def replace(self, query: Any) -> Arguments:
        """Return the arguments with another question, a text or vector."""
        call, path = self, self._path
        if self._must_move(query):
            call, path = self._clear(), self.binding.path
        if path == (SCORE_BY,):
            query = clauses.replace_question(call._get(path), query)
        elif isinstance(query, str):
            query = [query] if _is_list_of_one_text(call._get(path)) else query
        elif path == self.binding.path and _split_words(path[-1])[-1] in _LISTS_OF_VECTORS:
            query = [query]
        return call._set(path, query)

    def replace_top_k(self, top_k: int) -> Arguments:
        """Return the arguments with another number of passages, if the call has a place for it."""
        # The user's object may not allow to be copied or changed.
        with suppress(Exception):
            return self._set(self._number_path, top_k)
        return self

    def move_query(self) -> Arguments:
        """Return the arguments with the question's text where the function takes it."""
        with suppress(NoQuestion):
            if not self.binding.takes_vector and self._must_move(""):
                return self.replace(self._get(self._path))
        return self

    # --- document searches ------------------------------------------------------------------------

    def read_clause_type(self) -> str | None:
        """Return the type of the first clause of a document search, ``""`` if it cannot be read."""
        with suppress(NoQuestion):
            if self.binding.takes_clauses or self._path[0] == SCORE_BY:
                value = self._get((SCORE_BY,))
                return clauses.read_clause_type(value[0]) if clauses.are_clauses(value) else ""
        return None

    # --- where things are -------------------------------------------------------------------------

    @cached_property
    def _path(self) -> Path:
        """The keyword or position at which this call passes the question, and the keys inside."""
        root = self._find_root()
        return (root, *self._find_keys(root, self._get((root,))))

    def _find_root(self) -> Any:
        binding = self.binding
        score_by = self._get((SCORE_BY,)) if binding.takes_clauses or binding.is_loose else None
        if binding.takes_clauses and not clauses.are_clauses(score_by):
            return SCORE_BY
        passed = [root for root in binding.sources if self._read(root) is not _EMPTY]
        for root in passed:
            if self._read(root) is not None:
                return root
        if binding.is_loose:
            # Nothing is known about the parameters. The first text is the best guess, then clauses.
            texts = [index for index, it in enumerate(self.args) if isinstance(it, str)]
            if not texts and clauses.are_clauses(score_by) and not binding.is_named:
                return SCORE_BY
            if self.args:
                return texts[0] if texts else len(self.args) - 1
        if passed:
            return passed[-1]
        if binding.read_default(binding.path[0]) is None:
            raise binding.make_missing_error()
        return binding.path[0]

    def _find_keys(self, root: Any, argument: Any) -> tuple[str, ...]:
        """Return the keys of the question's text inside *argument*; ``()`` if this is the text."""
        binding = self.binding
        # Types of a question itself, not of an object that holds it.
        if argument is None or isinstance(argument, str | list | tuple):
            return ()
        if root == binding.path[0] and len(binding.path) > 1:
            return binding.path[1:]
        if root == _INPUTS:
            return _INPUTS_TEXT[1:]
        if isinstance(read_field(argument, *BUNDLE), str):
            return () if binding.takes_vector else BUNDLE
        is_nested = binding.is_pinecone_search or read_field(argument, _INPUTS) is not None
        return _INPUTS_TEXT if is_nested else ()

    @cached_property
    def _number_path(self) -> Path:
        """The path to the number of passages; ``()`` if there is none."""
        name = self.binding.top_k_argument
        if name and "." in name:
            return tuple(name.split("."))
        root, *keys = self._path
        if (*keys,) == _INPUTS_TEXT and self._get((root, "top_k")) is not None:
            return root, "top_k"
        if name is None and self.binding.has_var_keyword:
            name = find_top_k_name(self.kwargs)
        return (name,) if name else ()

    def _must_move(self, query: Any) -> bool:
        """Return whether the function takes *query* elsewhere than where the call passes it."""
        root, binding = self._path[0], self.binding
        if root in (binding.path[0], SCORE_BY):
            return False
        if binding.takes_vector and not binding.takes_clauses:
            # A text stays; it only becomes a vector later.
            return not (isinstance(query, str) or binding.accepts_vector(root))
        if not isinstance(self._read(root), str | list | tuple):
            # The question is inside an object that the function takes.
            return False
        return binding.is_pinecone_search or not binding.accepts(root)

    def _clear(self) -> Arguments:
        """Return the arguments without their text, unless the function takes a text too."""
        root, binding, call = self._path[0], self.binding, self
        is_taken = root in binding.named and not binding.is_pinecone_search
        if is_taken and root != _INSTEAD_OF_VECTORS:
            return call
        if binding.top_k_argument and self._number_path[0] == root:
            call = call._set((binding.top_k_argument,), call._get(self._number_path))
        if root in binding.named:
            return call._set((root,), binding.read_default(root))
        args = [value for index, value in enumerate(call.args) if index != root]
        kwargs = {name: value for name, value in call.kwargs.items() if name != root}
        return Arguments(binding, args, kwargs)

    def _find_index(self, root: Any) -> int | None:
        """Return the index of the argument *root* in `args`; ``None`` if it is not there."""
        index = self.binding.positions.get(root, root)
        is_there = isinstance(index, int) and index < len(self.args)
        return index if is_there and root not in self.kwargs else None

    def _read(self, root: Any) -> Any:
        """Return the argument *root*, or `_EMPTY` if the call does not pass it."""
        index = self._find_index(root)
        return self.kwargs.get(root, _EMPTY) if index is None else self.args[index]

    def _get(self, path: Path) -> Any:
        """Return the value at *path*, or else the default; ``None`` if there is none."""
        if not path:
            return None
        root, *keys = path
        value = self._read(root)
        return read_value_at_path(
            self.binding.read_default(root) if value is _EMPTY else value, keys
        )

    def _set(self, path: Path, value: Any) -> Arguments:
        """Return the arguments with *value* at *path*. What lies on the path is copied."""
        root, *keys = path
        if keys:
            held = self._get((root,))
            value = replace_value_at_path({} if held is None else held, tuple(keys), value)
        index = self._find_index(root)
        if index is not None:
            args = [*self.args[:index], value, *self.args[index + 1 :]]
            return Arguments(self.binding, args, self.kwargs)
        return Arguments(self.binding, self.args, {**self.kwargs, root: value})


def _copy_containers(value: Any, copies: dict[int, Any]) -> Any:
    """Return *value* with copies of the containers in it, each made once and found in *copies*."""
    kind = type(value)
    if kind not in _CONTAINERS:
        return value
    if id(value) in copies:
        return copies[id(value)]
    if kind is tuple:
        return tuple([_copy_containers(item, copies) for item in value])
    # Another thread may change the original in the meantime.
    copied = copies[id(value)] = value.copy()
    if kind is not set and len(copied) <= _MOST_ITEMS:
        for key, item in copied.items() if kind is dict else enumerate(copied):
            copied[key] = _copy_containers(item, copies)
    return copied


def find_top_k_name(names: Iterable[str]) -> str | None:
    """Return the name among *names* that is most usual for the number of passages, if any is."""
    known = [name for name in names if _fold(name) in _TOP_K_RANKS]
    return min(known, key=lambda name: _TOP_K_RANKS[_fold(name)], default=None)


def read_parameters_of_any(fn: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of *fn* by name. Some builtins have no signature: any may be passed."""
    try:
        return read_parameters(fn)
    except (ValueError, TypeError):
        return _ANYTHING


def _fold(name: str) -> str:
    return name.replace("_", "").lower()


_TOP_K_RANKS: Final = {_fold(name): rank for rank, name in enumerate(TOP_KS)}


def _split_words(name: str) -> list[str]:
    """Return the words of *name* that tell something, in lower case; at least one."""
    words = (word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name))
    return [word for word in words if word not in _FILLERS] or [""]


def _has_other_meaning(name: str) -> bool:
    """Return whether *name* tells of a number of passages, of a page, or of where to search."""
    is_number_or_page = _fold(name) in _TOP_K_RANKS or _is_page_name(name)
    return is_number_or_page or not _SCOPES.isdisjoint(_split_words(name))


def _is_list_of_one_text(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 1 and isinstance(value[0], str)


def _is_page_name(name: str) -> bool:
    return _PAGES.fullmatch(_fold(name)) is not None


def should_await_calls(fn: Any, declared_kind: object) -> bool:
    """Return whether calls of *fn* must be awaited; raise `WrapError` if it cannot be wrapped."""
    if declared_kind not in (None, "sync", "async"):
        raise WrapError(f"kind must be 'sync' or 'async', not {declared_kind!r}")
    if not callable(fn):
        kind = type(fn).__name__
        raise WrapError(f"{kind} is not callable; wrap a function or a method that searches")
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        name = getattr(fn, "__name__", fn)
        raise WrapError(
            f"{name} yields its results one by one; wrap a function that returns them as a list"
        )
    return declared_kind == "async" if declared_kind else is_async(fn)
