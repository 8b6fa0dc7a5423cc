"""The loops that perform a flow's steps: `run` blocks, `arun` awaits; `told` and `atold` listen to a model.

The only place with threads and asyncio.
"""

from qtmiddleware.runtime.drivers.awaiting import arun
from qtmiddleware.runtime.drivers.blocking import run
from qtmiddleware.runtime.drivers.telling import Piece, atold, told
from qtmiddleware.runtime.drivers.threads import Bulkhead, current_bulkhead, in_thread
from qtmiddleware.runtime.drivers.world import ModelOnly, World

__all__ = ["Bulkhead", "ModelOnly", "Piece", "World", "arun", "atold", "current_bulkhead", "in_thread", "run", "told"]
