"""The systems that a comparison measures: their settings, and the search they apply to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Unpack, cast

from qtmiddleware.catalogue import TRANSFORMS
from qtmiddleware.config import Config
from qtmiddleware.config.reading import read_preset
from qtmiddleware.errors import ConfigError, WrapError
from qtmiddleware.kit.check import configure_function
from qtmiddleware.kit.evaluation.dataset import Question
from qtmiddleware.protocols import Embedder, LanguageModel, Store
from qtmiddleware.types import Answer, Match, Retrieval, Variant
from qtmiddleware.wrapping.query_middleware import QueryMiddleware, WrapOptions
from qtmiddleware.wrapping.wrapped import Wrapped

# The settings of a system, as in a config.
Settings = Mapping[str, Any]

# All other systems are compared with this one: the plain search.
BASELINE: Final = "off"
# A wrapped function, or an index, with its own settings.
OWN: Final = "yours"
# This system, a preset too, searches the model's texts, not the question.
SEEDS: Final = "seed-parity"
# A text of at least this many characters identifies a passage that contains it.
_PART_CHARS: Final = 40
_NO_RULES: Final[Settings] = {
    "preprocess": {"enabled": False},
    "keywordEvidence": {"enabled": False},
}
_ALWAYS: Final[Settings] = {"escalation": {"mode": "always"}}


def read_preset_settings(preset: str) -> Settings:
    """Return the settings of a preset, without the name of its model."""
    _, settings = read_preset(preset)
    return {
        key: value
        for key, value in settings.items()
        if key[0] != "$" and key != "transformationModel"
    }


_TRANSFORMS: Final = {
    "balanced" if name == "combined" else name: {"transformationType": name, **_ALWAYS}
    for name in TRANSFORMS
    if name != "none"
}
_BALANCED: Final = _TRANSFORMS["balanced"]
_HYBRID: Final[Settings] = {"hybrid": {"enabled": True}}
# All other settings have their defaults.
SYSTEMS: Final[Mapping[str, Settings]] = {
    BASELINE: {"transformationType": "none", **_NO_RULES, "rerank": {"enabled": False}},
    "preprocessed as text": {
        "transformationType": "none",
        "preprocess": {"applyTo": "text"},
        "keywordEvidence": {"enabled": False},
    },
    "rules": {"transformationType": "none"},
    **_TRANSFORMS,
    "auto": {"transformationType": "combined", "escalation": {"mode": "auto"}},
    SEEDS: {**read_preset_settings(SEEDS), **_ALWAYS},
    "balanced, no hyde": {**_BALANCED, "fusion": {"weights": {"hyde": 0}}},
    # Merges the lists, with the question's list as anchor, and applies no rules.
    "balanced, no rules": {**_BALANCED, **_NO_RULES},
    "hybrid": {"transformationType": "none", **_HYBRID},
    "hybrid, balanced": {**_BALANCED, **_HYBRID},
}
# These need neither a model nor a store of the kit.
FREE: Final = (BASELINE, "preprocessed as text", "rules")
# The default systems if there is a model. They work with any retrieval function.
USUAL: Final = (*FREE, *_TRANSFORMS, "auto", SEEDS)
# The settings for measuring. A system's own settings override them.
MEASURED: Final[Settings] = {
    "cache": {"enabled": False},
    "limits": {"llmTimeoutMs": 30_000, "deadlineMs": 60_000},
    "log": {"path": None},
}


def asks_a_model(system_name: str) -> bool:
    """Return whether the system asks a language model. Raises `ConfigError` if it is unknown."""
    return bool(chosen([system_name])[system_name]["transformationType"] != "none")


def chosen(
    systems: str | Sequence[str] | Mapping[str, Settings],
) -> dict[str, Settings]:
    """Return the settings of ``off`` and of *systems*, each system once.

    Raises:
        ConfigError: A system is unknown, or settings have a name with another meaning.
    """
    if isinstance(systems, Mapping):
        if systems.get(BASELINE, SYSTEMS[BASELINE]) != SYSTEMS[BASELINE]:
            raise ConfigError(
                f"the name {BASELINE!r} is reserved; rename the system", path="systems"
            )
        return {BASELINE: SYSTEMS[BASELINE], **systems}
    names = [systems] if isinstance(systems, str) else systems
    known = {**SYSTEMS, OWN: {}}
    for name in names:
        if name not in known:
            raise ConfigError(
                f"there is no system {name!r}; the systems are: {'; '.join(SYSTEMS)}",
                path="systems",
            )
    return {name: known[name] for name in dict.fromkeys((BASELINE, *names))}


# --- a search with the settings of a system -------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Run:
    """The result of a system for one question.

    Attributes:
        ids: The ids of the passages, best first.
        seconds_added: The time that the system took beyond the plain search, in seconds.
        degraded: Whether a step failed or was skipped.
        cost_usd: The model's price in US dollars; ``None`` if it is not known.
        searches: The number of searches; ``None`` if it is not known.
    """

    ids: tuple[str, ...]
    seconds_added: float = 0.0
    llm_calls: int = 0
    degraded: bool = False
    cost_usd: float | None = 0.0
    variants: tuple[Variant, ...] = field(default=(), repr=False)
    searches: int | None = None
    error: Exception | None = None


def read_run(retrieval: Retrieval, relevant_texts: Mapping[str, str]) -> Run:
    """Return the result of *retrieval* for measuring.

    A passage whose text is one of *relevant_texts* has the id of that text. Raises `ConfigError` if
    the passages cannot be read, or have no ids and there are no *relevant_texts*.
    """
    for note in retrieval.degradations:
        if (note.stage, note.reason) == ("response", "unreadable"):
            raise ConfigError(
                f"the function's results cannot be read as passages ({note.detail}); return a list"
                ' of passages, each with an "id" that the judgements use',
                path="fn",
            )
    if not relevant_texts and not all(match.id for match in retrieval.matches):
        raise ConfigError(
            "the function's results have no ids; return passages with an"
            ' "id" that the judgements use, or set keywordEvidence.fields.id to their field',
            path="fn",
        )
    trace = retrieval.trace
    wanted = {id_: _fold(text) for id_, text in relevant_texts.items()}
    return Run(
        ids=tuple(
            _find_id(match, wanted) or f"passage {place}"
            for place, match in enumerate(retrieval.matches, 1)
        ),
        seconds_added=(trace.added_ms + trace.replayed_ms) / 1e3,
        llm_calls=trace.llm_calls,
        degraded=retrieval.status == "degraded",
        cost_usd=trace.cost_usd,
        variants=retrieval.variants,
        searches=trace.searches,
    )


def _fold(text: str) -> str:
    return " ".join(text.casefold().split())


def _find_id(match: Match, wanted: Mapping[str, str]) -> str | None:
    text = "" if match.id in wanted else _fold(match.text or "")
    for id_, judged in wanted.items():
        # An index may cut documents into smaller or larger passages than the judgements.
        part, whole = sorted((text, judged), key=len)
        if text == judged or (len(part) >= _PART_CHARS and part in whole):
            return id_
    return match.id


@dataclass(frozen=True, slots=True)
class System:
    """A search with the settings of one system. Call it with a question to get a `Run`.

    *function* is wrapped; *configure* returns a copy of it with other settings. *arguments* are
    those of every call, apart from the question. *runner* runs an asynchronous function.
    """

    function: Any = field(repr=False)
    configure: Callable[[Settings], Any] = field(repr=False)
    arguments: Mapping[str, Any] = field(default_factory=dict, repr=False)
    runner: asyncio.Runner | None = field(default=None, repr=False)

    def with_settings(self, settings: Settings) -> System:
        """Return the search with *settings*. It has learned nothing from earlier calls."""
        return replace(self, function=self.configure(settings))

    def with_each(self, systems: Mapping[str, Settings]) -> dict[str, System]:
        """Return the search with the settings of each of *systems*, by the system's name."""
        return {name: self.with_settings(settings) for name, settings in systems.items()}

    def retrieve(self, question: Question) -> Retrieval:
        """Search for *question*. Exceptions of the function pass through."""
        return cast(Retrieval, self._call("retrieve", question))

    def answer(self, question: Question) -> Answer:
        """Let the model answer *question*. Exceptions of both pass through."""
        return cast(Answer, self._call("answer", question))

    def _call(self, method: str, question: Question) -> Any:
        keywords = {"history": question.history, **self.arguments}
        if self.runner is None:
            return getattr(self.function, method)(question.text, **keywords)
        return self.runner.run(getattr(self.function, f"a{method}")(question.text, **keywords))

    def __call__(self, question: Question) -> Run:
        """Return the result for *question*. An exception of the function becomes `Run.error`."""
        try:
            return read_run(self.retrieve(question), question.relevant_texts)
        except Exception as error:
            # The function may answer the next question.
            return Run((), error=error)


@contextmanager
def open_system(
    fn: Callable[..., Any],
    *,
    client: Any = None,
    config: Config | Settings | None = None,
    arguments: Mapping[str, Any] | None = None,
    top_k: int | None = None,
    **options: Unpack[WrapOptions],
) -> Iterator[System]:
    """Yield a system that searches with *fn*, wrapped or not.

    A wrapped function, or the retriever of an index, keeps its own settings where a system does not
    set others. *client*, *config* and *options* are for a plain *fn*. *top_k* passages are asked
    for, if *fn* has a parameter for it.

    Raises:
        ConfigError: *fn* is wrapped, and *client*, *config* or *options* is given.
        WrapError: *fn* cannot be wrapped, or is asynchronous while an event loop is running.
    """
    base: Any = fn
    if not isinstance(fn, Wrapped):
        base = QueryMiddleware(config or {}, client=client).wrap(fn, **cast(Any, options))
    elif client is not None or config is not None or options:
        raise ConfigError(
            "fn is already wrapped; set the client and the options where you wrap it", path="fn"
        )
    keywords = dict(arguments or {})
    if top_k is not None and base.top_k_argument is not None:
        keywords.setdefault(base.top_k_argument, top_k)
    system = System(base, partial(configure_function, base, MEASURED), keywords)
    if not base.is_async:
        yield system
        return
    refuse_running_loop()
    with asyncio.Runner() as runner:
        yield replace(system, runner=runner)


def index_system(
    store: Store,
    embedder: Embedder,
    model: LanguageModel | None,
    *,
    top_k: int,
) -> System:
    """Return a system that searches the index in *store* for *top_k* passages.

    Environment variables are ignored.
    """

    def configure(settings: Settings) -> Any:
        config = index_config(settings)
        return QueryMiddleware(config, client=model, store=store, embedder=embedder).retriever

    return System(configure({}), configure, {"top_k": top_k})


def index_config(settings: Settings) -> Config:
    """Return the config for measuring an index with *settings*."""
    config = Config.load(MEASURED, environ={}).overridden(settings)
    # Without a circuit breaker, a model's failure does not affect the next questions.
    return config.overridden({"breaker": {"failures": 0}})


def refuse_running_loop() -> None:
    """Raise `WrapError` if an event loop is running, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise WrapError(
        "an event loop runs here already, as in a notebook;"
        " call this function with `await asyncio.to_thread(...)`"
    )
