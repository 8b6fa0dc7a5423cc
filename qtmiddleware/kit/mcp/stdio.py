"""Serve MCP over stdin and stdout, and keep other code from reading or writing either stream."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server


@dataclass(frozen=True, slots=True)
class Stdio:
    """The original stdin and stdout of the process, which carry the MCP messages.

    Attributes:
        input_stream: The original stdin, with the client's messages.
        output_stream: The original stdout, for the server's messages.
    """

    input_stream: BinaryIO
    output_stream: BinaryIO


@contextmanager
def reserve_stdio() -> Iterator[Stdio]:
    """Yield the original stdin and stdout, and reserve both for MCP messages.

    All other output to stdout then goes to stderr, and other code finds stdin empty. C libraries
    and child processes are affected too, because the function redirects the file descriptors. The
    redirection stays after the ``with`` block.
    """
    # Flush first, because buffered text would go to stderr after the redirection.
    sys.stdout.flush()
    input_stream = os.fdopen(os.dup(0), "rb")
    output_stream = os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    yield Stdio(input_stream, output_stream)


async def serve_stdio(server: Server[Any], stdio: Stdio) -> None:
    """Answer the client's MCP messages over *stdio* until the client disconnects."""
    import anyio
    from mcp.server.stdio import stdio_server

    output_text = TextIOWrapper(
        stdio.output_stream, encoding="utf-8", newline="\n", write_through=True
    )
    lines: Any = _read_lines(stdio.input_stream)
    # A client that leaves during a call no longer reads the reply.
    with suppress(BrokenPipeError, ConnectionError):
        try:
            async with stdio_server(lines, anyio.wrap_file(output_text)) as (receiver, sender):
                await server.run(receiver, sender, server.create_initialization_options())
        # The SDK's task group wraps the error of a closed pipe in a group.
        except BaseExceptionGroup as errors:
            _, others = errors.split((BrokenPipeError, ConnectionError))
            if others is not None:
                raise others from None


async def _read_lines(stream: BinaryIO) -> AsyncIterator[str]:
    """Yield each line of *stream* without blocking the event loop.

    A daemon thread reads the lines, because a blocking read cannot be cancelled.
    """
    loop = asyncio.get_running_loop()
    lines: asyncio.Queue[bytes] = asyncio.Queue(1)

    def queue_lines() -> None:
        # The event loop may close before the client does.
        with suppress(RuntimeError, OSError, ValueError):
            while True:
                line = stream.readline()
                asyncio.run_coroutine_threadsafe(lines.put(line), loop).result()
                if not line:
                    return

    threading.Thread(target=queue_lines, name="qtmiddleware-stdin", daemon=True).start()
    while line := await lines.get():
        yield line.decode("utf-8", "replace")
