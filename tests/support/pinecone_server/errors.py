"""Why a request is not served."""

from __future__ import annotations


class Refused(Exception):
    """The request is sound but cannot be served as things stand."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class RuleBroken(Refused):
    """The request is not as Pinecone describes its requests: a client that sends it has a defect."""
