"""Every error this package raises of its own.

    QtMiddlewareError
    ├── ConfigError (ValueError)        a setting is unknown or impossible
    ├── InvalidQuery (ValueError)       the query is blank, too long or not text
    ├── WrapError (TypeError)           this callable cannot be wrapped the way it was asked
    ├── ResponseShapeError (TypeError)  no matches could be read out of a response
    ├── MissingExtra (ImportError)      an optional dependency is not installed
    ├── ModelError                      the language model gave nothing usable
    ├── EmbeddingError                  texts could not be turned into vectors
    ├── StoreError                      the store cannot be opened, read or written
    ├── EngineError                     an engine cannot be started, or its workers died
    └── UnreadableDocument              a document cannot be read

Beside them `SetupWarning`, which is never raised. An exception of the wrapped function itself is
never one of these: it passes through unchanged.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pathlib import Path

_CONTEXT: Final = vars(BaseException)["__context__"]
_MOST_QUOTED: Final = 2_000
_CREDENTIALS: Final = re.compile(r"//[^\s'\"]*@")


class QtMiddlewareError(Exception):
    """The base of every error of this package."""

    @property
    def __context__(self) -> BaseException | None:
        """What was being handled when this was raised; ``None`` where it was raised ``from None`` or from a cause.

        That may quote a text or a key. By itself ``from None`` hides it from printed tracebacks
        alone; it stays where tools look that show the locals of tracebacks.
        """
        if self.__suppress_context__:
            _CONTEXT.__set__(self, None)
        found: BaseException | None = _CONTEXT.__get__(self)
        return found

    @__context__.setter
    def __context__(self, error: BaseException | None) -> None:
        _CONTEXT.__set__(self, error)


class ConfigError(QtMiddlewareError, ValueError):
    """A setting is unknown or impossible.

    *path* is the key as it is written in the file (``fusion.rrfK``), *value* what was found there
    and *allowed* what may stand there; *source* says which layer it came from (a file's path,
    ``environment``, ``call``, ...).
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
    """The query is blank, too long or not text; nothing was called. *argument* names the parameter that held it."""

    def __init__(self, message: str, *, argument: str = "query") -> None:
        super().__init__(message)
        self.argument = argument


class WrapError(QtMiddlewareError, TypeError):
    """This callable cannot be wrapped, or a call to it cannot be read, the way it was asked."""


class ResponseShapeError(QtMiddlewareError, TypeError):
    """No matches could be read out of a response of the wrapped function; *shape* names the type that was found."""

    def __init__(self, message: str, *, shape: str = "") -> None:
        super().__init__(message)
        self.shape = shape


class SetupWarning(UserWarning):
    """A wrapped function is set up so that its results cannot be improved; warned of once a function.

    Says what was understood, what was not and how to mend it. Where a filter turns warnings into
    errors it is logged
    alone: it takes no retrieval down.
    """


class MissingExtra(QtMiddlewareError, ImportError):
    """An optional dependency is not installed; the message holds the command that installs it."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f'{package} is not installed; run: pip install "qtmiddleware[{extra}]"')
        self.package = package
        self.extra = extra

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions are pickled by their arguments, which are not those of __init__ here.
        return type(self), (self.package, self.extra)


_UNASKED: Final = frozenset({"circuit_open", "over_budget", "overloaded"})
_REFUSED: Final = frozenset(
    {"unauthorized", "rate_limited", "unavailable", "rejected", "too_long", "unrecorded"}
)
_FREE: Final = _UNASKED | _REFUSED
_REPLIED: Final = frozenset(
    {"timeout", "refused", "empty", "truncated", "unparsable", "cancelled", "failed"}
)
REASONS: Final = _FREE | _REPLIED
"""All reasons of a `ModelError`: what is told of one of somebody else's."""


class ModelError(QtMiddlewareError):
    """The language model gave nothing usable.

    *reason* is one word a program can act on: ``timeout``, ``unauthorized``, ``rate_limited``,
    ``unavailable``, ``rejected``, ``refused``, ``empty``, ``truncated``, ``unparsable``,
    ``too_long``, ``cancelled``, ``unrecorded`` (a recording has no reply), ``failed`` (a bug in the
    user's own model function, which is logged), or, where the model was not asked at all,
    ``circuit_open``, ``over_budget`` or ``overloaded`` (all threads of the middleware are taken).
    The message never holds the query, the reply or a key: of one that a model or function of yours
    raises its reason alone is told, and ``unavailable`` where that is another word. *retry_after*
    is for how many seconds the service asked to be left alone, or a circuit breaker or the calls'
    own minute leaves it alone. *retrieval* is what had been found where an answer failed. *notes*
    say why each text of an unusable reply was dropped, as (field, what happened).
    """

    def __init__(self, reason: str, message: str = "", *, retry_after: float | None = None) -> None:
        super().__init__(message or reason)
        self.reason = reason
        self.retry_after = retry_after
        self.retrieval: Any = None
        self.notes: tuple[tuple[str, str], ...] = ()

    @property
    def was_asked(self) -> bool:
        """Whether the model was asked at all; a service that was left alone was not."""
        return self.reason not in _UNASKED

    @property
    def is_free(self) -> bool:
        """Whether a call that ended so is charged nowhere; what others cost nobody says."""
        return self.reason in _FREE


class EmbeddingError(QtMiddlewareError):
    """Texts could not be turned into vectors."""


class StoreError(QtMiddlewareError):
    """The store cannot be opened, read or written."""


class EngineError(QtMiddlewareError):
    """An engine of batches cannot be started, or its workers died over a batch again and again."""


class UnreadableDocument(QtMiddlewareError):
    """A document cannot be read; *path* names it.

    *reason* is ``empty``, ``binary``, ``not text in UTF-8``, ``encrypted``, ``damaged``, ``too
    large``, ``an old Office format``, ``no text in it``, ``no text in it (scanned?)``, ``its reader
    failed`` or ``cannot be opened``; *detail* says more where more is known. Neither holds any of
    its text.
    """

    def __init__(self, path: Path, reason: str, detail: str = "") -> None:
        # A name may break lines, and so forge one in whatever this is written to.
        named = str(path) if str(path).isprintable() else ascii(str(path))
        super().__init__(f"{named} was not read: {reason}" + (f" ({detail})" if detail else ""))
        self.path = path
        self.reason = reason
        self.detail = detail

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions are pickled by their arguments, which are not those of __init__ here.
        return type(self), (self.path, self.reason, self.detail)


_PROXIES: Final = (
    "ALL_PROXY",
    "HTTPS_PROXY",
    "HTTP_PROXY",
    "all_proxy",
    "https_proxy",
    "http_proxy",
)


@contextmanager
def explained(make_error: Callable[[str], QtMiddlewareError]) -> Iterator[None]:
    """Let what keeps a client of HTTP from being made here out as *make_error* of a sentence that says what to do.

    That is a variable of certificates or proxies, of which the name is said and never the value,
    which may hold a password. All else passes through.
    """
    try:
        yield
    except QtMiddlewareError:
        raise
    except Exception as error:
        is_proxy = "proxy" in str(error).casefold() or type(error).__name__ == "InvalidURL"
        variables = (
            ("SSL_CERT_FILE",) if isinstance(error, OSError) else _PROXIES if is_proxy else ()
        )
        named = [name for name in variables if os.environ.get(name)]
        if not named:
            raise
        socks = (
            "; for a SOCKS proxy run: pip install socksio" if isinstance(error, ImportError) else ""
        )
        raise make_error(
            f"this machine cannot connect ({type(error).__name__}), and nothing was sent; correct"
            f" or unset {' or '.join(named)}{socks}"
        ) from None


def without_credentials(text: str) -> str:
    """The beginning of *text* without what stands before an ``@`` in its addresses."""
    return _CREDENTIALS.sub("//", text[:_MOST_QUOTED])


def as_model_error(error: BaseException | None) -> ModelError:
    """*error* as what a model may raise; ``None`` is a call that was given up at its deadline."""
    if isinstance(error, ModelError):
        return error
    if error is None:
        return ModelError(
            "timeout",
            "the language model did not answer in time; raise answer.timeoutMs if it needs more",
        )
    failed = ModelError("unavailable", f"the language model raised {type(error).__name__}")
    failed.__cause__ = error
    return failed


LONGEST_PAUSE: Final = 600.0
"""The longest pause in seconds that a service is granted, whatever it names."""


def limit_pause(seconds: object) -> float | None:
    """Return the pause of *seconds* that a service names, at most `LONGEST_PAUSE`; ``None`` if it is no such number."""
    if isinstance(seconds, (int, float)) and seconds >= 0:
        return float(min(seconds, LONGEST_PAUSE))
    return None


def retell(error: ModelError, name: str) -> ModelError:
    """What may be told of *error*, which the user's own model *name* raised: its reason and message may be any text."""
    reason = error.reason if error.reason in REASONS else "unavailable"
    pause = limit_pause(error.retry_after)
    return ModelError(reason, f"{name} raised {type(error).__name__}: {reason}", retry_after=pause)


def is_raised_here(error: BaseException) -> bool:
    """Return whether this package raised *error*, so that its words are ours and quote nobody.

    A user's own function may raise the same classes with any text.
    """
    traceback, module = error.__traceback__, ""
    while traceback is not None:
        module, traceback = str(traceback.tb_frame.f_globals.get("__name__")), traceback.tb_next
    return module.partition(".")[0] == "qtmiddleware"


def is_refusal(error: BaseException) -> bool:
    """Whether *error*, somebody else's, says that the call itself is wrong, so that the same one will fail again."""
    status = getattr(error, "status_code", None) or getattr(error, "status", None)
    return status in (400, 422) if isinstance(status, int) else not is_outage(error)


def is_outage(error: BaseException) -> bool:
    """Whether *error* says that a backend is down or busy, so that asking it for less will not help.

    It is somebody else's, or a `StoreError`, which is judged by its cause.
    """
    if isinstance(error, StoreError) and error.__cause__ is not None:
        error = error.__cause__
    status = getattr(error, "status_code", None) or getattr(error, "status", None)
    if isinstance(status, int):
        return status == 429 or status >= 500
    name = type(error).__name__.casefold()
    return isinstance(error, OSError) or "timeout" in name or "connection" in name
