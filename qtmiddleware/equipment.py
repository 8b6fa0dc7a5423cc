"""What the settings in force ask for: a language model and a log, made once for each way they are set."""

from __future__ import annotations

from collections.abc import Hashable
from threading import Lock
from typing import Any, Final

from qtmiddleware.config import Config
from qtmiddleware.errors import ConfigError
from qtmiddleware.llms import as_language_model
from qtmiddleware.overrides import Layers
from qtmiddleware.ports import LanguageModel
from qtmiddleware.querylog import QueryLog
from qtmiddleware.settings import Settings

# How many differently set models and logs are kept; per-call settings are few, but they may come from users.
MOST_KEPT: Final = 32


class Equipment:
    """The models and logs of one middleware, for its own settings and for those of single calls."""

    def __init__(self, config: Config, client: Any) -> None:
        self._config = config
        self._client = client
        self._lock = Lock()
        self._models: dict[Hashable, LanguageModel] = {}
        self._logs: dict[Hashable, QueryLog] = {}

    def settings(self, layers: Layers) -> Settings:
        """The settings with *layers* laid over them, the last on top; raises `ConfigError` for impossible ones."""
        config = self._config
        for layer in layers:
            config = config.overridden(layer)
        own, cache = self._config.settings.cache, config.settings.cache
        if (cache.max_entries, cache.ttl_seconds) != (own.max_entries, own.ttl_seconds):
            raise ConfigError(
                "cache.maxEntries and cache.ttlSeconds belong to the whole middleware; one call cannot change them",
                path="cache",
                source="call",
            )
        return config.settings

    def model(self, settings: Settings) -> LanguageModel:
        """The model that *settings* ask for; one that was given as such is asked whatever they say."""
        llm = settings.llm
        key = (
            settings.transformation_model,
            llm.base_url,
            llm.temperature,
            llm.max_tokens,
            llm.structured_output,
            llm.input_price,
            llm.output_price,
        )
        with self._lock:
            model = self._models.get(key)
            if model is None:
                if len(self._models) >= MOST_KEPT:
                    # The first one is that of the middleware's own settings and stays.
                    del self._models[list(self._models)[1]]
                model = self._models[key] = as_language_model(self._client, settings)
        return model

    def log(self, settings: Settings) -> QueryLog | None:
        """The log that *settings* ask for."""
        path, query_text = settings.log.path, settings.log.query_text
        if path is None:
            return None
        with self._lock:
            if len(self._logs) >= MOST_KEPT:
                self._logs.clear()
            return self._logs.setdefault((path, query_text), QueryLog(path, query_text=query_text))

    def close(self) -> None:
        """Close the clients that were made here; those that were given stay open."""
        for model in self._models.values():
            if hasattr(model, "close"):
                model.close()

    async def aclose(self) -> None:
        """`close` for the clients of the running loop too."""
        for model in self._models.values():
            if hasattr(model, "aclose"):
                await model.aclose()
