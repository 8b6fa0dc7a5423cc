"""The loops that perform a flow's steps: `run` blocks, `arun` awaits; `told` and `atold` listen to a model.

The only place with threads and asyncio.
"""

from qtmiddleware.drivers.awaiting import arun
from qtmiddleware.drivers.blocking import run
from qtmiddleware.drivers.telling import Piece, atold, told
from qtmiddleware.drivers.threads import Bulkhead, current_bulkhead, in_thread
from qtmiddleware.drivers.world import ModelOnly, World

__all__ = ["Bulkhead", "ModelOnly", "Piece", "World", "arun", "atold", "current_bulkhead", "in_thread", "run", "told"]
