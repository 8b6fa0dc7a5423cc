"""Define all errors that this package raises.

    QtMiddlewareError
    ├── ConfigError (ValueError)        a setting is unknown or invalid
    ├── InvalidQuery (ValueError)       the query is blank, too long or not text
    ├── WrapError (TypeError)           a callable cannot be wrapped, or a call is unclear
    ├── ResponseShapeError (TypeError)  no matches could be read from a response
    ├── MissingExtra (ImportError)      an optional dependency is not installed
    ├── ModelError                      the language model gave no usable reply
    ├── EmbeddingError                  texts could not be turned into vectors
    ├── StoreError                      the store cannot be opened, read or written
    ├── EngineError                     Ray cannot be reached, or ended the run
    └── UnreadableDocument              a document cannot be read

`SetupWarning` is a warning and is never raised as an error. Exceptions of the wrapped function
itself pass through unchanged: they are never wrapped in one of these classes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pathlib import Path

_CONTEXT: Final = vars(BaseException)["__context__"]


class QtMiddlewareError(Exception):
    """The base class of all errors of this package."""

    @property
    def __context__(self) -> BaseException | None:
        """The exception that was being handled when this error was raised, or ``None``.

        It is dropped if the error was raised with ``from``, because it may quote a text or a key,
        which tools that show local variables would find. Python's own ``from None`` only hides it.
        """
        if self.__suppress_context__:
            _CONTEXT.__set__(self, None)
        error: BaseException | None = _CONTEXT.__get__(self)
        return error

    @__context__.setter
    def __context__(self, error: BaseException | None) -> None:
        _CONTEXT.__set__(self, error)


class ConfigError(QtMiddlewareError, ValueError):
    """A setting is unknown or invalid.

    Attributes:
        path: the key as it is written in the file, such as ``fusion.rrfK``.
        value: the value that is not allowed.
        allowed: a phrase that names the allowed values.
        source: where the value was set: such as ``file rag.json``, ``environment QTM_TOP_K`` or
            ``call``.
    """

    def __init__(
        self,
        message: str,
        *,
        path: str = "",
        value: Any = None,
        allowed: str = "",
        source: str = "",
    ) -> None:
        super().__init__(message)
        self.path = path
        self.value = value
        self.allowed = allowed
        self.source = source


class InvalidQuery(QtMiddlewareError, ValueError):
    """The query is blank, too long or not text, so no search was made.

    *argument* is the name of its parameter.
    """

    def __init__(self, message: str, *, argument: str = "query") -> None:
        super().__init__(message)
        self.argument = argument


class WrapError(QtMiddlewareError, TypeError):
    """A callable cannot be wrapped with these options, or the arguments of a call are unclear."""


class ResponseShapeError(QtMiddlewareError, TypeError):
    """The passages in a response of the type *shape* could not be read."""

    def __init__(self, message: str, *, shape: str = "") -> None:
        super().__init__(message)
        self.shape = shape


class SetupWarning(UserWarning):
    """A wrapped function is set up so that qtmiddleware cannot improve its results.

    Issued once per function, with the fix. It never fails a retrieval, even if a filter turns
    warnings into errors.
    """


class MissingExtra(QtMiddlewareError, ImportError):
    """*package* is not installed; the message has the command that installs it with *extra*."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f'{package} is not installed; run: pip install "qtmiddleware[{extra}]"')
        self.package = package
        self.extra = extra

    def __reduce__(self) -> tuple[Any, ...]:
        # An exception is pickled by its `args`, which differ from the arguments of `__init__` here.
        return type(self), (self.package, self.extra)


_NOT_ASKED_REASONS: Final = frozenset({"circuit_open", "over_budget", "overloaded"})
_FREE_REASONS: Final = _NOT_ASKED_REASONS | frozenset(
    {"unauthorized", "rate_limited", "unavailable", "rejected", "too_long", "unrecorded"}
)
REASONS: Final = _FREE_REASONS | frozenset(
    {"timeout", "refused", "empty", "truncated", "unparsable", "cancelled", "failed"}
)
"""All reasons of a `ModelError`. `build_safe_error` replaces any other reason by a known one."""


class ModelError(QtMiddlewareError):
    """The language model gave no usable reply. The message holds no query, reply or key.

    Attributes:
        reason: ``timeout``, ``unauthorized``, ``rate_limited``, ``unavailable``, ``rejected``,
            ``refused``, ``empty``, ``truncated``, ``unparsable``, ``too_long``, ``cancelled``,
            ``unrecorded`` (a recording has no reply) or ``failed`` (a bug in the user's own model).
            If the model was not asked: ``circuit_open``, ``over_budget`` or ``overloaded`` (all
            threads are in use).
        retry_after: the seconds to wait before the next call; ``None`` if not known.
        retrieval: the retrieval with the passages found, if an answer failed.
        notes: the reason for each dropped text of an unusable reply, as ``(field, detail)``.
    """

    def __init__(self, reason: str, message: str = "", *, retry_after: float | None = None) -> None:
        super().__init__(message or reason)
        self.reason = reason
        self.retry_after = retry_after
        self.retrieval: Any = None
        self.notes: tuple[tuple[str, str], ...] = ()

    @property
    def was_asked(self) -> bool:
        """Whether the model was asked at all."""
        return self.reason not in _NOT_ASKED_REASONS

    @property
    def is_free(self) -> bool:
        """Whether the failed call certainly cost nothing."""
        return self.reason in _FREE_REASONS


class EmbeddingError(QtMiddlewareError):
    """Texts could not be converted to vectors."""


class StoreError(QtMiddlewareError):
    """The store cannot be opened, read or written."""


class EngineError(QtMiddlewareError):
    """Ray cannot be started or reached, or it ended the run."""


class UnreadableDocument(QtMiddlewareError):
    """A document cannot be read.

    The reason and the detail never contain any of the document's text.

    Attributes:
        path: the document's path.
        reason: ``empty``, ``binary``, ``not text in UTF-8``, ``encrypted``, ``damaged``, ``too
            large``, ``no text in it``, ``no text in it (scanned?)``, ``its reader failed`` or
            ``cannot be opened``.
        detail: a further explanation; ``""`` if there is none.
    """

    def __init__(self, path: Path, reason: str, detail: str = "") -> None:
        # A file's name may contain line breaks, which could forge a line in a log or terminal.
        printable_path = str(path) if str(path).isprintable() else ascii(str(path))
        super().__init__(
            f"{printable_path} was not read: {reason}" + (f" ({detail})" if detail else "")
        )
        self.path = path
        self.reason = reason
        self.detail = detail

    def __reduce__(self) -> tuple[Any, ...]:
        # An exception is pickled by its `args`, which differ from the arguments of `__init__` here.
        return type(self), (self.path, self.reason, self.detail)


_PROXIES: Final = ("all_proxy", "https_proxy", "http_proxy")


@contextmanager
def explain_client_errors(make_error: Callable[[str], QtMiddlewareError]) -> Iterator[None]:
    """Explain why an HTTP client could not be created in this ``with`` block.

    If an environment variable for certificates or proxies is to blame, raises the error that
    *make_error* returns for a sentence that names the variable, but never its value, which may
    contain a password. Other exceptions pass through.
    """
    try:
        yield
    except QtMiddlewareError:
        raise
    except Exception as error:
        is_proxy = "proxy" in str(error).casefold() or type(error).__name__ == "InvalidURL"
        names = ("ssl_cert_file",) if isinstance(error, OSError) else _PROXIES if is_proxy else ()
        set_variables = [name for name, it in os.environ.items() if it and name.lower() in names]
        if not set_variables:
            raise
        socks = (
            "; for a SOCKS proxy run: pip install socksio" if isinstance(error, ImportError) else ""
        )
        raise make_error(
            f"this machine cannot connect ({type(error).__name__}), and nothing was sent; correct"
            f" or unset {' or '.join(set_variables)}{socks}"
        ) from None


def convert_to_model_error(error: BaseException | None) -> ModelError:
    """Return *error* as a `ModelError`; ``None`` stands for a call abandoned at its deadline."""
    if isinstance(error, ModelError):
        return error
    if error is None:
        return ModelError(
            "timeout",
            "the language model did not answer in time; raise answer.timeoutMs if it needs more",
        )
    reason = "unavailable" if isinstance(error, Exception) else "cancelled"
    model_error = ModelError(reason, f"the language model raised {type(error).__name__}")
    model_error.__cause__ = error
    return model_error


LONGEST_PAUSE: Final = 600.0
"""The longest pause that a service may ask for, in seconds; a longer pause is shortened."""


def limit_pause(pause_seconds: object) -> float | None:
    """Return the seconds that a service asks to pause, limited; ``None`` if it is no number."""
    if isinstance(pause_seconds, (int, float)) and pause_seconds >= 0:
        return float(min(pause_seconds, LONGEST_PAUSE))
    return None


def build_safe_error(error: ModelError, model_name: str) -> ModelError:
    """Return a copy of *error* without any text from the user's model *model_name*."""
    reason = error.reason if error.reason in REASONS else "unavailable"
    pause = limit_pause(error.retry_after)
    return ModelError(
        reason, f"{model_name} raised {type(error).__name__}: {reason}", retry_after=pause
    )


def is_raised_by_package(error: BaseException) -> bool:
    """Return whether this package raised *error*, so that it quotes no user's text."""
    traceback, module = error.__traceback__, ""
    while traceback is not None:
        module = str(traceback.tb_frame.f_globals.get("__name__"))
        traceback = traceback.tb_next
    return module.partition(".")[0] == "qtmiddleware"


# Names of errors without a status, such as those of gRPC and boto3.
_RATE_LIMIT: Final = re.compile(r"(?i)rate_?limit|too_?many_?requests|throttl|resource_?exhausted")


def is_rate_limit(error: BaseException) -> bool:
    """Return whether *error*, which a client or function raised, says that calls are too many."""
    for raised in (error, error.__cause__):
        if _RATE_LIMIT.search(type(raised).__name__):
            return True
        # A property of the user's class may raise anything.
        with suppress(Exception):
            for holder in (raised, getattr(raised, "response", None)):
                names = ("status_code", "status", "code")
                if 429 in [getattr(holder, name, None) for name in names]:
                    return True
    return False
