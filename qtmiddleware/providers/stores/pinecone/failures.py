"""What Pinecone's client raised, said for people."""

from __future__ import annotations

from typing import Final

from qtmiddleware.errors import StoreError

_ADVICE: Final = {
    400: "rejected the request; its own words stand in the cause of this error",
    401: "refused the key; check PINECONE_API_KEY",
    402: "asks for payment; check the plan of the project",
    403: "does not allow this to the key, or a quota is used up; check the rights of PINECONE_API_KEY and the plan",
    404: "knows no such index or model; check the names and hosts in the config's store",
    408: "did not answer in time; try again later",
    413: "says the request is too large",
    429: "takes no more requests for now (rate limit or quota); try again later",
}
_UNREADABLE: Final = frozenset({"ResponseParsingError", "JSONDecodeError", "DecodeError", "AttributeError"})


def status_of(error: BaseException) -> int | None:
    """The HTTP status *error* stands for, in every version of the client."""
    found = getattr(error, "status_code", None) or getattr(error, "status", None)
    return found if isinstance(found, int) else None


def as_store_error(error: Exception, subject: str, doing: str) -> StoreError:
    """The `StoreError` for *error*, raised by the client while *subject* was being *doing* ("searched", "written to").

    Its message names the kind of failure alone: Pinecone likes to quote what it was sent.
    """
    return StoreError(f"{subject} could not be {doing}: {_said(error)}")


def _said(error: Exception) -> str:
    status = status_of(error)
    if status is not None:
        advice = _ADVICE.get(status) or ("is not available; try again later" if status >= 500 else _ADVICE[400])
        return f"Pinecone {advice} (HTTP {status})"
    kind = type(error).__name__
    names = {ancestor.__name__ for ancestor in type(error).__mro__}
    if any("Timeout" in name for name in names):
        return f"Pinecone did not answer in time; try again later ({kind})"
    if names & _UNREADABLE:
        return f"what answered is not Pinecone, or its answer cannot be read ({kind})"
    if names & {"ValueError", "TypeError"}:
        return f"Pinecone's client refused the request ({kind}); its own words stand in the cause of this error"
    return f"Pinecone cannot be reached; check the network, store.index and store.host ({kind})"
