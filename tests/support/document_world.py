"""A document index of a few passages behind the real Pinecone SDK over HTTP, and a call of its search in every form."""

from __future__ import annotations

from typing import Any, Final

from tests.support.pinecone_server.documents import Field
from tests.support.pinecone_world import PineconeWorld

BODIES: Final = {
    "cats": "Do any cats have any toys, or does any dog have any?",
    "health": "Jaco has no health concerns at present, the vet wrote in May",
    "food": "Jaco eats dry food from the shop around the corner twice a day",
    "fees": "The fee for the course is due in March",
    "walks": "Jaco goes for long walks in the woods behind the house",
}
SCHEMA: Final = {
    "title": Field(full_text=True),
    "body": Field(full_text=True, embed=True, sparse_embed=True),
    "secret": Field(full_text=True, store_text=False),
    "vec": Field("dense_vector", dimension=2),
    "terms": Field("sparse_vector"),
}


def embed(text: str) -> list[float]:
    return [float(len(text)), float(ord(text[0]))]


def build_documents() -> list[dict[str, Any]]:
    documents = []
    for page, (name, body) in enumerate(BODIES.items()):
        values = {"indices": [1, len(body)], "values": [1.0, 2.0]}
        document = {
            "_id": name,
            "title": name,
            "body": body,
            "secret": body,
            "vec": embed(body),
            "terms": values,
        }
        documents.append(
            {**document, "page": page, "tags": ["dog"] if "Jaco" in body else ["other"]}
        )
    return documents


def add_documents(world: PineconeWorld) -> None:
    """Add the index ``docs``, whose passages lie in the namespace ``docs``."""
    world.add_documents("docs", SCHEMA, build_documents())


def list_ids(response: Any) -> list[str]:
    return [document.id for document in response.matches]
