"""Perform a flow's steps: `run` blocks the calling thread, and `arun` is a coroutine.

`stream_reply` and `astream_reply` read a model's reply piece by piece.
"""

from qtmiddleware.runtime.drivers.awaiting import arun
from qtmiddleware.runtime.drivers.blocking import run
from qtmiddleware.runtime.drivers.streaming import Piece, astream_reply, stream_reply
from qtmiddleware.runtime.steps import ModelOnly, Performer
from qtmiddleware.runtime.threads import (
    Bulkhead,
    acall_all,
    call_all,
    get_current_bulkhead,
    run_in_thread,
)

__all__ = [
    "Bulkhead",
    "ModelOnly",
    "Performer",
    "Piece",
    "acall_all",
    "arun",
    "astream_reply",
    "call_all",
    "get_current_bulkhead",
    "run",
    "run_in_thread",
    "stream_reply",
]
