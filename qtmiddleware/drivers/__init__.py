"""The two loops that perform a flow's steps: `run` blocks, `arun` awaits. The only place with threads and asyncio."""

from qtmiddleware.drivers.awaiting import arun
from qtmiddleware.drivers.blocking import run
from qtmiddleware.drivers.threads import in_thread
from qtmiddleware.drivers.world import World

__all__ = ["World", "arun", "in_thread", "run"]
