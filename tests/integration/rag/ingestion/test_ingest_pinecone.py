"""The same ingest into Pinecone, by its real client, over HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.ingest_world import DIMENSION, Counting, World
from tests.support.pinecone_world import PineconeWorld, pinecone_world


def test_pinecone_holds_what_sqlite_does(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with pinecone_world() as pinecone:
        for name, value in pinecone.environment.items():
            monkeypatch.setenv(name, value)
        pinecone.add_index("passages", dimension=DIMENSION)
        options: dict[str, Any] = {"config": {"store": {"kind": "pinecone", "index": "passages"}}}
        world.ingest(**options)
        world.write("alpha.txt", "Alpha is short now.")
        (world.docs / "gamma.txt").unlink()
        embed = Counting()
        report = world.ingest(embed=embed, **options)
        assert (report.changed, report.unchanged, report.removed) == (1, 1, 1)
        assert report.embedded == embed.calls == 1
        assert world.ingest(**options).written == 0
        assert held_in(pinecone) == {id_: text for id_, (text, _, _) in world.clean().items()}
        # An index that was made anew is filled again.
        pinecone.add_index("passages", dimension=DIMENSION)
        world.ingest(**options)
        assert held_in(pinecone) == {id_: text for id_, (text, _, _) in world.clean().items()}


def held_in(pinecone: PineconeWorld) -> dict[str, str]:
    return {id_: str(one.metadata["text"]) for id_, one in pinecone.stored("passages").items()}
