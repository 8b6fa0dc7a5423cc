"""What a namespace was made with, kept as a record in a namespace of its own beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from typing import Any, Final
from uuid import uuid4

from qtmiddleware.errors import StoreError
from qtmiddleware.providers.stores.pinecone.calls import Calls
from qtmiddleware.providers.stores.pinecone.records import DEFAULT_NAMESPACES, whole
from qtmiddleware.runtime.forking import ForkLock
from qtmiddleware.runtime.logs import get_logger

NAMESPACE: Final = "qtmiddleware.about"
_DEFAULT: Final = "__default__"
_log = get_logger("qtmiddleware.stores")


def vectors_in(stats: Any, namespace: str) -> int:
    """How many vectors *stats* counts in *namespace*; the default one goes by two names."""
    held: Mapping[str, Any] = getattr(stats, "namespaces", None) or {}
    names = DEFAULT_NAMESPACES if namespace in DEFAULT_NAMESPACES else (namespace,)
    return max((int(held[name].vector_count or 0) for name in names if name in held), default=0)


class About:
    """The record that says which model made the vectors of *namespace*, looked for once, before anything else.

    *kind* is what the index must hold, ``dense`` or ``sparse``, ``""`` for either. *patience* is how many seconds a
    thread waits for another that looks. *put* writes the record, given its namespace, its id and its metadata. With
    *model* ``""`` the index embeds by itself.
    """

    def __init__(
        self,
        calls: Calls,
        namespace: str,
        *,
        kind: str,
        model: str,
        dimension: int,
        patience: float,
        put: Callable[[str, str, dict[str, Any]], None],
    ) -> None:
        self._calls = calls
        self._namespace = namespace
        self._kind = kind
        self._model = model
        self._dimension = dimension
        self._patience = patience
        self._put = put
        self._lock = ForkLock()
        self._looked = False
        self._token = ""
        self._foreign = 0
        self.metric = ""

    def look(self) -> None:
        """Read the record, the first time; raises `StoreError` where the vectors are not of this model."""
        with self._locked():
            self._look()

    def claim(self) -> None:
        """As `look`, and write the record where nothing is in the namespace yet.

        Raises `StoreError` where somebody else's vectors are in it: which model made them is not known.
        """
        with self._locked():
            self._look()
            if not self._token and self._foreign and self._model:
                raise StoreError(
                    f"{self._where} holds {self._foreign:,} vectors of an embedding model that is not recorded there; "
                    "vectors of two models cannot stand together. Use another store.namespace to write to"
                )
            self._write()

    def identity(self) -> str:
        """The name of this index and namespace, and of this making of them where that is recorded."""
        with self._locked():
            self._look()
            if not self._foreign or not self._model:
                self._write()
            return f"pinecone:{self._calls.host}/{self._key}#{self._token}"

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One thread at a time asks; the others do not queue behind one that waits in vain."""
        lock = self._lock.free
        if not lock.acquire(timeout=self._patience):
            late = f"Pinecone did not answer within {self._patience:g} seconds; try again later"
            raise StoreError(f"{self._calls.subject} could not be opened: {late}")
        try:
            yield
        finally:
            lock.release()

    @property
    def _id(self) -> str:
        """The record's own id: names of namespaces may hold blanks, which ids that are fetched may not."""
        return sha256(self._key.encode()).hexdigest()

    @property
    def _key(self) -> str:
        return _DEFAULT if self._namespace in DEFAULT_NAMESPACES else self._namespace

    @property
    def _where(self) -> str:
        return f"the namespace {self._key!r} of {self._calls.subject}"

    def _look(self) -> None:
        if self._looked:
            return
        stats = self._calls("describe_index_stats", "opened")
        self._check_index(stats)
        answer = self._calls("fetch", "opened", ids=[self._id], namespace=NAMESPACE, missing=None)
        found = None if answer is None else answer.vectors.get(self._id)
        self._foreign = vectors_in(stats, self._namespace)
        if found is not None:
            self._check_model(found.metadata or {})
        elif self._foreign:
            _log.info("%s is not recorded as made by this package; only its dimension was checked", self._where)
        self._looked = True

    def _check_index(self, stats: Any) -> None:
        kind, dimension = getattr(stats, "vector_type", None), getattr(stats, "dimension", None)
        self.metric = getattr(stats, "metric", None) or ""
        if self._kind and kind and kind != self._kind:
            raise StoreError(f"{self._calls.subject} holds {kind} vectors; this needs an index of {self._kind} ones")
        if self._kind == "dense" and dimension and dimension != self._dimension:
            raise StoreError(
                f"{self._calls.subject} holds vectors of {dimension} numbers and cannot be used with {self._model!r}, "
                f"which makes {self._dimension}. Use the model it was made for, or an index of that dimension"
            )

    def _check_model(self, held: Mapping[str, Any]) -> None:
        model, dimension = str(held.get("embedding_model") or ""), int(whole(held.get("dimension")) or 0)
        if (model, dimension) != (self._model, self._dimension):
            raise StoreError(
                f"{self._where} was made {_made_by(model, dimension)}, not "
                f"{_made_by(self._model, self._dimension)}: their vectors mean different things. Use it as it was "
                "made, or ingest again into another store.namespace"
            )
        self._token = str(held.get("identity", ""))

    def _write(self) -> None:
        if self._token:
            return
        token = uuid4().hex
        self._put(
            NAMESPACE,
            self._id,
            {
                "namespace": self._key,
                "embedding_model": self._model,
                "dimension": self._dimension,
                "identity": token,
            },
        )
        self._token = token


def _made_by(model: str, dimension: int) -> str:
    """Who makes the vectors, for people; the model of a sparse index gives them no length."""
    if not model:
        return "by the index itself (store.integrated)"
    return f"with the embedding model {model!r}" + (f" ({dimension} numbers a vector)" if dimension else "")
