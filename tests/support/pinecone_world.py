"""A Pinecone of our own on this machine for the real client: all it is sent is held against its rules.

    with pinecone_world() as world:
        world.add_index("passages", dimension=384)
        store = open_pinecone(StoreSettings(kind="pinecone", index="passages"), ...)   # with world.environment set

It leaves with an `AssertionError` where a request was not as Pinecone takes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache, cached_property
from importlib import import_module
from threading import Thread
from typing import Any

import msgspec
from werkzeug.serving import WSGIRequestHandler, make_server

from tests.support.pinecone_server.app import App, Canned, Exchange
from tests.support.pinecone_server.documents import DocumentIndex, Field
from tests.support.pinecone_server.state import Index, Stored

API_KEY = "pcsk_secret_0123456789"


class Handler(WSGIRequestHandler):
    # Small writes, each sent by itself, would wait for the other side's delayed acknowledgement.
    wbufsize = -1
    disable_nagle_algorithm = True

    def log(self, type: str, message: str, *args: Any) -> None:  # noqa: A002
        """Silent."""


class PineconeWorld:
    """*url* serves the hosted models and the control; an index is at `host`. *environment* is what a user would set."""

    def __init__(self) -> None:
        self.api_key = API_KEY
        self.exchanges: list[Exchange] = []
        self.app = App(API_KEY, watch=self.exchanges.append)
        self.opened = ExitStack()

    @property
    def url(self) -> str:
        return self.app.base_url

    @property
    def environment(self) -> dict[str, str]:
        """``PINECONE_CONTROLLER_HOST`` is the client's own variable for the control and the hosted models."""
        return {"PINECONE_API_KEY": self.api_key, "PINECONE_CONTROLLER_HOST": self.url}

    def add_index(self, name: str, **options: Any) -> None:
        """A new, empty index with *options* of `Index`; with a *model* it embeds texts by itself."""
        self.app.indexes[name] = Index(name, **options)

    def add_documents(
        self,
        name: str,
        schema: dict[str, Field],
        documents: Sequence[dict[str, Any]] = (),
    ) -> None:
        """A new index of *documents*, in the namespace ``docs``; one of that name is replaced."""
        self.app.indexes[name] = made = DocumentIndex(name, schema)
        if documents:
            made.upsert("docs", {"documents": list(documents)})

    def host(self, name: str) -> str:
        return f"{self.url}/i/{name}"

    def stored(self, name: str, namespace: str = "__default__") -> dict[str, Stored]:
        """What the index *name* holds in *namespace*, by id."""
        index = self.app.indexes[name]
        assert isinstance(index, Index)
        return dict(index.namespaces.get(namespace, {}))

    @cached_property
    def _client(self) -> Any:
        from pinecone import Pinecone

        # Nothing is encrypted here, and reading the machine's certificates takes most of a test.
        client = Pinecone(api_key=self.api_key, host=self.url, ssl_verify=False)
        return self.opened.enter_context(client)

    def client(self) -> Any:
        """A real client, the same at every call and closed with this world."""
        return self._client

    def index(self, name: str) -> Any:
        """A real index, closed with this world."""
        return self.opened.enter_context(self._client.Index(host=self.host(name)))

    def answers(
        self,
        path: str,
        status: int = 500,
        body: str = "",
        *,
        content_type: str = "text/plain",
    ) -> None:
        """Requests whose path ends in *path* are answered so from now on."""
        self.app.canned.append(Canned(path, status, body, content_type))

    def recovers(self) -> None:
        """No more of `answers`."""
        self.app.canned.clear()

    def sent(self, path: str) -> list[Any]:
        """The bodies of the requests whose path ends in *path*, in order."""
        return [one.json for one in self.exchanges if one.path.endswith(path)]


def without_pauses(patch: Any) -> None:
    """The client tries as often as it does, without a pause in between; *patch* is pytest's monkeypatch."""
    from pinecone._internal import http_client

    patch.setattr(http_client, "_retry_sleep", lambda seconds: None)
    # Failures of earlier tests would count against the tries of this one.
    http_client.get_budget_registry()._reset()


@cache
def build_decoders() -> None:
    """Let msgspec look at all classes of the client now: two threads that make it look at one at once crash."""
    import_module("pinecone")
    kinds = [msgspec.Struct]
    for kind in kinds:
        kinds += kind.__subclasses__()
        with suppress(TypeError, NameError):
            msgspec.json.Decoder(kind)


@contextmanager
def pinecone_world() -> Iterator[PineconeWorld]:
    """A `PineconeWorld` without indexes, at the end of which nothing may have been sent that Pinecone does not take."""
    build_decoders()
    world = PineconeWorld()
    server = make_server("127.0.0.1", 0, world.app, threaded=True, request_handler=Handler)
    world.app.base_url = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield world
    finally:
        with suppress(Exception):
            world.opened.close()
        server.shutdown()
        thread.join(10)
        server.server_close()
    broken = [f"{one.path}: {one.broken}" for one in world.exchanges if one.broken]
    assert broken == [], "Pinecone would not take this"
