"""Find the question, the number of passages and the page in the calls of one function.

A `Binding` is made once, when the function is wrapped. Replacements are made in copies, so the
caller's arguments never change.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import date
from functools import cached_property, partial
from typing import Any, Final, Literal

from qtmiddleware.errors import WrapError
from qtmiddleware.runtime.background_loop import is_async
from qtmiddleware.runtime.fields import (
    BUNDLE,
    read_field,
    read_parameters,
    read_value_at_path,
    replace_value_at_path,
)
from qtmiddleware.wrapping import clauses
from qtmiddleware.wrapping.clauses import EVERY_FIELD, INCLUDE_FIELDS, SCORE_BY

QUERIES: Final = (
    "query",
    "question",
    "q",
    "text",
    "search_query",
    "query_text",
    "query_texts",
    "user_query",
    "prompt",
    "message",
    "input",
)
VECTORS: Final = (
    "vector",
    "query_vector",
    "embedding",
    "query_embedding",
    "query_embeddings",
    "near_vector",
    "vec",
    "emb",
)
TOP_KS: Final = (
    *("top_k", "k", "limit", "n_results", "num_results", "n", "size", "max_results"),
    *("max_num_results", "similarity_top_k", "num_docs", "top_n", "top", "match_count"),
    *("number_of_results", "result_count", "num_neighbors", "n_docs", "max_docs"),
    *("num_documents", "max_documents", "num_hits", "max_hits", "num_matches", "max_matches"),
    *("num_passages", "max_passages", "num_chunks", "max_chunks", "max_items"),
    *("count", "hits", "rows", "take"),
)
"""In any spelling: ``topK`` is ``top_k``."""

PageArgument = str | Literal[False] | None
"""The name of the argument that selects a page of results.

``False`` means that no argument selects a page. ``None`` means that common names do.
"""
Path = tuple[Any, ...]
"""The keyword or position of an argument, and the keys inside the argument."""

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
_SEARCHES: Final = (
    "invoke",
    "retrieve",
    "search",
    "query",
    "similarity_search",
    "get_relevant_documents",
    "run",
)
_BY_POSITION: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_VARIADIC: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_ANYTHING: Final = inspect.signature(lambda *args, **kwargs: None).parameters  # noqa: ARG005
_EMPTY: Final = inspect.Parameter.empty
_NO_TEXT: Final = "takes a vector, not a text; pass embed=, a function from a text to its vector"


class Binding:
    """Where the question, the number of passages and the page are in the calls of one function.

    Args:
        fn: the function.
        query_arg: the name of the question's parameter, with dots for a value inside it. By
            default, the parameter with a usual name, or the only one that can be a text.
        top_k_arg: the same for the number of passages. By default, the parameter with a usual name.
        page_arg: see `PageArgument`.
        takes_vector: whether *fn* takes the question's vector, while its callers pass a text.

    Attributes:
        path: where the function takes the question.
        sources: the keywords and positions at which callers pass it, the likeliest first.
        argument: the name of the question's parameter, with dots for a value inside it.
        top_k_argument: the same for the number of passages; ``None`` if the signature has none.
        page, pages: the name of the page's parameter, if the user named it, or else all that have
            a page's name.
        ambiguity: why it is unclear which parameter takes the question; ``""`` if it is clear.
        function_name: the function's name, with the name of its class.
        has_var_keyword: whether the function has a ``**kwargs`` parameter.
        is_page_named: whether *page_arg* says what selects a page, or that nothing does.
        may_have_pages: whether the signature leaves open if the function has pages.

    Raises:
        WrapError: if no parameter can be the question, or if an option names no parameter.
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
        self.parameters = parameters = _Parameters(fn)
        parameters.check_names(query_arg=query_arg, top_k_arg=top_k_arg, page_arg=page_arg)
        self.takes_vector = takes_vector
        self.is_named = query_arg is not None
        self.function_name = parameters.function_name.rpartition("<locals>.")[2]
        self.has_var_keyword = parameters.has_var_keyword
        self.ambiguity = ""
        self.path = self._choose_question(query_arg)
        self.argument = ".".join(self.path) or "query"
        self.takes_clauses = self.path == (SCORE_BY,)
        self.sources = self._list_sources()
        self.top_k_argument = top_k_arg or find_top_k_name(
            name for name in parameters.named if name != self.path[0]
        )
        self.is_page_named = page_arg is not None
        self.page = page_arg or ""
        taken = (self.path[0], (self.top_k_argument or "").partition(".")[0])
        self.pages = [it for it in parameters.named if _is_page_name(it) and it not in taken]
        self.may_have_pages = self.has_var_keyword and not (self.pages or self.is_page_named)

    # --- choices that are made once ---------------------------------------------------------------

    def _choose_question(self, query_arg: str | None) -> tuple[str, ...]:
        """Return the path to the question. If it is unclear, set `ambiguity`."""
        parameters = self.parameters
        takes_vector = self.takes_vector
        if parameters.is_pinecone_search and not takes_vector and query_arg in (None, "query"):
            parameters.require_free("query")
            return parameters.require_free(*_INPUTS_TEXT)
        if query_arg is not None:
            return parameters.require_free(*query_arg.split("."))
        if SCORE_BY in parameters.named and parameters.inner.keys().isdisjoint(QUERIES):
            return (SCORE_BY,)
        # The inner function's names, so that a partial that sets the question is reported.
        usual_names = (*VECTORS, *QUERIES) if takes_vector else QUERIES
        for name in usual_names:
            if name in parameters.inner:
                if not takes_vector and parameters.is_vector(name):
                    raise parameters.make_error(_NO_TEXT)
                return parameters.require_free(name)
        names = parameters.list_likeliest(takes_vector)
        takes_only_vectors = parameters.shows_only_vectors
        if names:
            takes_only_vectors = all(map(parameters.is_vector, names))
        if takes_only_vectors and not takes_vector:
            raise parameters.make_error(_NO_TEXT)
        if len(names) > 1:
            self.ambiguity = (
                f"several of its parameters may be the question ({', '.join(names)}); name the"
                " right one with query_arg="
            )
            return ("",)
        if not names and not parameters.is_loose:
            raise parameters.make_error(
                "has no parameter that looks like the query; name it with query_arg="
                f" ({parameters.describe()})"
            )
        if names:
            return tuple(names)
        return ("vector",) if takes_vector else ("query",)

    def _list_sources(self) -> Path:
        """Return the keywords and positions that may hold the question, the likeliest first."""
        parameters = self.parameters
        name = self.path[0]
        usual = [*(it for it in QUERIES if it not in parameters.named), _INPUTS]
        is_by_name = not (parameters.positional or parameters.is_loose)
        first = [parameters.first_position] if is_by_name else []
        if self.takes_clauses:
            # A text that a caller passes beside the clauses, unless the function takes it.
            texts = [] if self.has_var_keyword else usual
            return *texts, *first, name
        if not name and self.takes_vector:
            return ()
        if self.takes_vector:
            texts = [it for it in QUERIES if it in parameters.named and it != name]
            return *texts, name, *usual, *first
        if parameters.is_pinecone_search:
            return "query", name, *usual, *first
        # If the name is only a guess, **kwargs may hold a usual one.
        is_guess = self.has_var_keyword and not self.is_named and name not in QUERIES
        return (*usual, name) if is_guess else (name, *usual, *first)

    def make_missing_error(self) -> WrapError:
        """Return the error for a call without a question."""
        if self.ambiguity:
            return WrapError(f"{self.function_name}(): {self.ambiguity}")
        advice = ""
        if self.parameters.is_loose and not self.takes_vector:
            advice = "if it takes a vector, wrap it with embed=; otherwise "
        return self.parameters.make_error(
            f"was called without a query; {advice}pass it as {self.argument!r}, or name the"
            " parameter that holds the query with query_arg="
        )

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
        """Return the arguments of one call."""
        return Arguments(self, args, kwargs)


class Arguments:
    """The arguments of one call. They never change: every change returns others.

    Attributes:
        binding: where the question and the number of passages are.
        args: the positional arguments.
        kwargs: the keyword arguments.
    """

    def __init__(self, binding: Binding, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self.binding = binding
        self._parameters = binding.parameters
        self.args, self.kwargs = args, kwargs

    def read_query(self) -> Any:
        """Return the question; of a list with one text (Chroma), the text.

        Raises `WrapError` if the call has no question, and `ClauseProblem` if its clauses have none
        that can be improved.
        """
        value = self.read_passed_query()
        return value[0] if _is_list_of_one_text(value) else value

    def read_passed_query(self) -> Any:
        """Return the question exactly as it is passed, for example as a list with one text."""
        root, argument = self._place
        if root == SCORE_BY:
            return clauses.read_question(argument)
        value = read_value_at_path(argument, self._keys)
        if value is None and self._keys:
            raise self.binding.make_missing_error()
        return value

    def read_top_k(self) -> int | None:
        """Return the number of passages in effect; ``None`` if it is missing or not an integer."""
        value = self._get(self._number_path)
        # NumPy's integers count too, but `True` is a mistake rather than 1.
        if hasattr(type(value), "__index__") and not isinstance(value, bool):
            return int(value)
        return None

    def find_page(self) -> str:
        """Return the name of the argument that selects a page of results, or ``""``.

        A parameter in the signature selects a page even if a call omits it: the first one.
        """
        binding = self.binding
        if binding.is_page_named:
            return binding.page
        for name in binding.pages:
            if _can_select_page(self._get((name,))):
                return name
        if not binding.may_have_pages:
            return ""
        for name, value in self.kwargs.items():
            if value is not None and _is_page_name(name) and _can_select_page(value):
                return name
        return ""

    def replace(
        self,
        query: Any,
        top_k: int | None = None,
        *,
        text_fields: Sequence[str] = (),
        is_one_of_list: bool = False,
    ) -> Arguments:
        """Return the arguments with another question and number of passages.

        Args:
            query: the new question: a text, or a vector if the function takes vectors.
            top_k: the new number of passages; ``None`` to keep the number.
            text_fields: the fields to search for the words of *query*, instead of the call's
                clauses.
            is_one_of_list: whether the call passes a list of questions, which *query* replaces.
        """
        binding, call = self.binding, self
        path: Path = (self._place[0], *self._keys)
        if top_k is not None and self._number_path:
            # The user's object may not allow to be copied or changed.
            with suppress(Exception):
                call = call._set(self._number_path, top_k)
        if self._must_move(query, is_one_of_list=is_one_of_list):
            call = self._remove_from(call)
            path = binding.path
        held = call._get(path)
        value = query
        if text_fields:
            value = clauses.build_text_clauses(text_fields, query)
        elif path == (SCORE_BY,):
            value = clauses.replace_question(held, query)
        elif isinstance(query, str):
            if _is_list_of_one_text(held) and not is_one_of_list:
                value = [query]
        elif path == binding.path and _split_words(path[-1])[-1] in _LISTS_OF_VECTORS:
            value = [query]
        return call._set(path, value)

    def move_query(self) -> Arguments:
        """Return the arguments with the question's text where the function takes it."""
        with suppress(WrapError):
            if not self.binding.takes_vector and self._must_move(""):
                return self.replace(self._place[1])
        return self

    # --- document searches ------------------------------------------------------------------------

    def read_clauses(self) -> Sequence[Any] | None:
        """Return the ``score_by`` clauses, ``()`` if they cannot be read.

        Returns ``None`` if the call is no document search.
        """
        with suppress(WrapError):
            if self.binding.takes_clauses or self._place[0] == SCORE_BY:
                value = self._get((SCORE_BY,))
                return value if clauses.are_clauses(value) else ()
        return None

    def find_unrequested_field(self, field_name: str | None) -> str:
        """Return *field_name* if this call could request the field but does not, else ``""``.

        Only a document search takes a list of fields to request.
        """
        can_request = INCLUDE_FIELDS in self._parameters.named or INCLUDE_FIELDS in self.kwargs
        if not field_name or not can_request or self.read_clauses() is None:
            return ""
        fields = self._get((INCLUDE_FIELDS,))
        # Only a list of names can be extended. Without a list, the index returns no fields.
        if fields is None:
            return field_name
        if not isinstance(fields, list | tuple):
            return ""
        is_requested = field_name in fields or EVERY_FIELD in fields
        return "" if is_requested else field_name

    def request_field(self, field_name: str) -> Arguments:
        """Return the arguments with a request for *field_name* of each document too."""
        fields = self._get((INCLUDE_FIELDS,)) or ()
        return self._set((INCLUDE_FIELDS,), [*fields, field_name])

    # --- where things are -------------------------------------------------------------------------

    @cached_property
    def _place(self) -> tuple[Any, Any]:
        """The keyword or position of the question, and the argument there."""
        binding = self.binding
        parameters = self._parameters
        held = None
        if binding.takes_clauses or parameters.is_loose:
            held = self._get((SCORE_BY,))
        if binding.takes_clauses and not clauses.are_clauses(held):
            return SCORE_BY, held
        null = ""
        for source in binding.sources:
            index = parameters.positions.get(source, source)
            if source in self.kwargs:
                if (value := self.kwargs[source]) is not None:
                    return source, value
                null = source
            elif isinstance(index, int) and index < len(self.args):
                return source, self.args[index]
        if parameters.is_loose:
            # Nothing is known about the parameters. The first text is the best guess, then clauses.
            texts = [place for place in enumerate(self.args) if isinstance(place[1], str)]
            if not texts and clauses.are_clauses(held) and not binding.is_named:
                return SCORE_BY, held
            if self.args:
                return (*texts, (len(self.args) - 1, self.args[-1]))[0]
        default = parameters.read_default(binding.path[0])
        if null:
            return null, None
        if default is not None:
            return binding.path[0], default
        raise binding.make_missing_error()

    @cached_property
    def _keys(self) -> tuple[str, ...]:
        """The keys of the question's text inside its argument; ``()`` if this is the text."""
        root, argument = self._place
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
        is_nested = self._parameters.is_pinecone_search or read_field(argument, _INPUTS) is not None
        return _INPUTS_TEXT if is_nested else ()

    @cached_property
    def _number_path(self) -> Path:
        """The path to the number of passages; ``()`` if there is none."""
        name = self.binding.top_k_argument
        if name and "." in name:
            return tuple(name.split("."))
        root, argument = self._place
        keys = self._keys
        if keys == _INPUTS_TEXT and read_field(argument, "top_k") is not None:
            return root, "top_k"
        if name is None and self.binding.has_var_keyword:
            name = find_top_k_name(self.kwargs)
        return (name,) if name else ()

    def _must_move(self, query: Any, *, is_one_of_list: bool = False) -> bool:
        """Return whether the function takes *query* elsewhere than where the call passes it."""
        root, argument = self._place
        binding = self.binding
        parameters = self._parameters
        if root in (binding.path[0], SCORE_BY):
            return False
        is_by_position = isinstance(root, int) and parameters.can_take_positional
        if binding.takes_vector and not binding.takes_clauses:
            # A method `query` that shows no parameters is Pinecone's, which takes keywords only.
            is_pinecone = parameters.function_name.rpartition(".")[2] == "query"
            is_anywhere = parameters.is_loose and not (is_pinecone or binding.is_named)
            if isinstance(query, str):
                return False
            return not (is_by_position and is_anywhere)
        is_taken = root in parameters.named or parameters.has_var_keyword
        if isinstance(root, int):
            is_taken = is_by_position
        is_list = is_one_of_list and isinstance(argument, list | tuple)
        is_text = isinstance(argument, str) or is_list
        return is_text and (not is_taken or parameters.is_pinecone_search)

    def _remove_from(self, call: Arguments) -> Arguments:
        """Return *call* without the text of this call, unless the function takes a text too."""
        root = self._place[0]
        parameters = self._parameters
        name = self.binding.top_k_argument
        is_taken = root in parameters.named and not parameters.is_pinecone_search
        if is_taken and root != _INSTEAD_OF_VECTORS:
            return call
        if name and self._number_path[0] == root:
            call = call._set((name,), call._get(self._number_path))
        if root in parameters.named and root not in call.kwargs:
            return call._set((root,), parameters.read_default(root))
        args = [value for index, value in enumerate(call.args) if index != root]
        kwargs = {name: value for name, value in call.kwargs.items() if name != root}
        return Arguments(self.binding, args, kwargs)

    def _get(self, path: Path) -> Any:
        """Return the value at *path*, or else the default; ``None`` if there is none."""
        if not path:
            return None
        root, *keys = path
        index = self._parameters.positions.get(root, root)
        if root in self.kwargs:
            value = self.kwargs[root]
        elif isinstance(index, int) and index < len(self.args):
            value = self.args[index]
        else:
            value = self._parameters.read_default(root)
        return read_value_at_path(value, keys)

    def _set(self, path: Path, value: Any) -> Arguments:
        """Return the arguments with *value* at *path*. What lies on the path is copied."""
        root, *keys = path
        if keys:
            held = self._get((root,))
            value = replace_value_at_path({} if held is None else held, tuple(keys), value)
        parameters = self._parameters
        args = list(self.args)
        index = parameters.positions.get(root, root)
        if root in self.kwargs or not isinstance(index, int):
            return Arguments(self.binding, args, {**self.kwargs, root: value})
        if index >= len(args):
            if parameters.named[root].kind is not inspect.Parameter.POSITIONAL_ONLY:
                return Arguments(self.binding, args, {**self.kwargs, root: value})
            # The parameters before this one can only be passed by position, too.
            args += map(parameters.read_default, [*parameters.positions][len(args) : index + 1])
        args[index] = value
        return Arguments(self.binding, args, self.kwargs)


class _Parameters:
    """The parameters of one function.

    Attributes:
        function_name: the function's name, with the name of its class.
        named: the parameters by name, without ``*args`` and ``**kwargs``.
        inner: the parameters of the function inside a partial, by name.
        positions: the positions of the parameters that may be passed by position, by name.
        first_position: the position of the first argument after ``self`` or ``cls``.
        positional: the names of the parameters that may be passed by position, without ``self``.
        can_take_positional: whether an argument may be passed by position, to ``*args`` too.
        has_var_keyword: whether the function has a ``**kwargs`` parameter.
        is_loose: whether only ``*args`` or ``**kwargs`` can hold the question.
        is_pinecone_search: whether the function has the parameters of Pinecone's search.
    """

    def __init__(self, fn: Callable[..., Any]) -> None:
        fn = fn.__func__ if isinstance(fn, staticmethod | classmethod) else fn
        inner = fn.func if isinstance(fn, partial) else fn
        self.function_name: str = getattr(inner, "__qualname__", type(inner).__qualname__)
        self._module = str(getattr(inner, "__module__", ""))
        parameters = _read_parameters(fn)
        kinds = {parameter.kind for parameter in parameters.values()}
        self.named = {name: it for name, it in parameters.items() if it.kind not in _VARIADIC}
        self.inner = _read_parameters(inner)
        fixed = fn.keywords.keys() if isinstance(fn, partial) else set[str]()
        by_position = [name for name, it in self.named.items() if it.kind in _BY_POSITION]
        self.positions = {name: index for index, name in enumerate(by_position)}
        self.first_position = int(by_position[:1] in (["self"], ["cls"]))
        self.positional = positional = by_position[self.first_position :]
        self._free = [it for it in self.named if it not in {"self", "cls", *fixed}]
        self._free_positional = [it for it in positional if it not in fixed]
        self.can_take_positional = bool(positional) or inspect.Parameter.VAR_POSITIONAL in kinds
        self.has_var_keyword = inspect.Parameter.VAR_KEYWORD in kinds
        is_known = self._free_positional or not {*QUERIES, *VECTORS}.isdisjoint(self._free)
        self.is_loose = not (kinds.isdisjoint(_VARIADIC) or is_known)
        self.is_pinecone_search = not positional and {_INPUTS, "namespace"} <= self.named.keys()

    @property
    def shows_only_vectors(self) -> bool:
        """Whether the function is known to take a vector and nothing that can be a text."""
        # Pinecone's `query` method has no named parameters.
        is_query = self.function_name.endswith(".query") and self._module.startswith("pinecone.")
        return (self.is_loose and is_query) or not self.named.keys().isdisjoint(VECTORS)

    def list_likeliest(self, takes_vector: bool) -> list[str]:
        """Return the parameters that take the question, as far as names and types can tell."""
        words = _VECTOR_WORDS if takes_vector else _TEXT_WORDS
        telling = [name for name in self._free if _split_words(name)[-1] in words]
        ranks: dict[str, tuple[int, bool, bool]] = {}
        for name in self._free_positional or telling:
            annotation = self.named[name].annotation
            is_typed = self._has_vector_type(name) if takes_vector else annotation in _TEXT_TYPES
            can_be = is_typed or annotation is _EMPTY
            if _fold(name) in _TOP_K_RANKS or _is_page_name(name):
                group = 3
            elif not _SCOPES.isdisjoint(_split_words(name)):
                group = 2
            elif can_be:
                group = int(self._is_optional(name))
            else:
                group = 1 if name in telling else 2
            ranks[name] = group, name not in telling, not is_typed
        likeliest = [name for name in ranks if ranks[name] == min(ranks.values())]
        if takes_vector or not likeliest or likeliest[0] in telling:
            return likeliest
        # Beside a vector that must be passed, a text may be the name of what is searched.
        vectors = [it for it in self._free if self.is_vector(it) and not self._is_optional(it)]
        if ranks[likeliest[0]][0] == 0:
            return list(dict.fromkeys((*likeliest, *vectors)))
        return vectors or likeliest

    def _is_optional(self, name: str) -> bool:
        return self.named[name].default is not _EMPTY

    def is_vector(self, name: str) -> bool:
        """Return whether *name* takes a vector, judged by its name and annotation."""
        return name in VECTORS or self._has_vector_type(name)

    def _has_vector_type(self, name: str) -> bool:
        return name in self.inner and bool(_VECTOR_TYPE.search(str(self.inner[name].annotation)))

    def read_default(self, name: Any) -> Any:
        """Return the default of *name*, or ``None`` if the parameter has no default."""
        if name not in self.named:
            return None
        default = self.named[name].default
        return None if default is _EMPTY else default

    def require_free(self, name: str, *keys: str) -> tuple[str, ...]:
        """Return the path. Raises `WrapError` if the function is a partial that sets *name*."""
        if name not in self._free and name in self.inner:
            raise self.make_error(
                f"is a partial that already sets {name!r}; leave the query out of the partial"
            )
        return name, *keys

    def check_names(self, **options: Any) -> None:
        """Raise `WrapError` if one of the *options* names no parameter."""
        for option, path in options.items():
            if path is None or (path is False and option == "page_arg"):
                continue
            if not isinstance(path, str):
                allowed = "a parameter's name"
                if option == "page_arg":
                    allowed += " or False"
                raise self.make_error(
                    f"cannot be wrapped: {option} must be {allowed}, not {path!r}"
                )
            name = path.partition(".")[0]
            if name in self.named or name in self.inner or self.has_var_keyword:
                continue
            from difflib import get_close_matches

            near = get_close_matches(name, self.named, 1)
            hint = f"did you mean {near[0]!r}?" if near else self.describe()
            raise self.make_error(f"has no parameter {name!r}, but {option}= names it; {hint}")

    def describe(self) -> str:
        """Return a phrase that lists the parameters."""
        return "its parameters are: " + (", ".join(self.named) or "none")

    def make_error(self, reason: str) -> WrapError:
        """Return an error that gives the *reason* why a function cannot be wrapped or called."""
        return WrapError(f"{self.function_name}() {reason}")


def find_top_k_name(names: Iterable[str]) -> str | None:
    """Return the name among *names* that is most usual for the number of passages, if any is."""
    known = [name for name in names if _fold(name) in _TOP_K_RANKS]
    return min(known, key=lambda name: _TOP_K_RANKS[_fold(name)], default=None)


def has_parameter(fn: Callable[..., Any], parameter_name: str) -> bool:
    """Return whether the signature of *fn* has a parameter *parameter_name*."""
    return parameter_name in _read_parameters(fn)


def _read_parameters(fn: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return read_parameters(fn)
    except (ValueError, TypeError):  # some builtins have no signature
        return _ANYTHING


def _fold(name: str) -> str:
    return name.replace("_", "").lower()


_TOP_K_RANKS: Final = {_fold(name): rank for rank, name in enumerate(TOP_KS)}


def _split_words(name: str) -> list[str]:
    """Return the words of *name* that tell something, in lower case; at least one."""
    words = (word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name))
    return [word for word in words if word not in _FILLERS] or [""]


def _is_list_of_one_text(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 1 and isinstance(value[0], str)


def _is_page_name(name: str) -> bool:
    return _PAGES.fullmatch(_fold(name)) is not None


def _can_select_page(value: Any) -> bool:
    """Return whether *value* can select a page: it is no switch, date or database cursor."""
    class_ = type(value)
    return not issubclass(class_, bool | date) and not hasattr(class_, "execute")


def should_await_calls(fn: Any, declared_kind: object) -> bool:
    """Return whether calls of *fn* must be awaited.

    *declared_kind* is the user's choice, ``"sync"`` or ``"async"``. If *declared_kind* is ``None``,
    inspect *fn*. Raises `WrapError` if *fn* cannot be wrapped.
    """
    if declared_kind not in (None, "sync", "async"):
        raise WrapError(f"kind must be 'sync' or 'async', not {declared_kind!r}")
    if not callable(fn):
        methods = [name for name in _SEARCHES if callable(getattr(type(fn), name, None))]
        advice = f"its search method: .{methods[0]}" if methods else "a function that searches"
        raise WrapError(f"{type(fn).__name__} is not callable; wrap {advice}")
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        name = getattr(fn, "__name__", fn)
        raise WrapError(
            f"{name} yields its results one by one; wrap a function that returns them as a list"
        )
    return declared_kind == "async" if declared_kind else is_async(fn)
