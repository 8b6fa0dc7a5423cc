"""``qtm playground``: compare the results of several configurations on a local web page."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import webbrowser
from pathlib import Path
from threading import Thread
from typing import Final

from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.cli.environment import NO_MODEL
from qtmiddleware.kit.cli.options import (
    Arguments,
    ConfigFile,
    Function,
    Port,
    QuestionFile,
    Sets,
)
from qtmiddleware.kit.cli.output import out, write_note
from qtmiddleware.kit.cli.searching import open_search, parse_arguments
from qtmiddleware.kit.evaluation import Dataset, load_judged, load_questions
from qtmiddleware.kit.playground.page import Page
from qtmiddleware.kit.playground.server import (
    LOOPBACK,
    build_app,
    open_socket,
    require_web,
    serve_app,
)
from qtmiddleware.kit.playground.tiers import Tiers

SEEDED: Final = 24
"""The number of questions that are searched before the page opens.

From their results, the rules learn which scores are usual for the function. Therefore, the first
result on the page has a confidence.
"""


def command(
    function: Function = None,
    arguments: Arguments = None,
    config: ConfigFile = None,
    sets: Sets = None,
    questions: QuestionFile = None,
    port: Port = None,
) -> None:
    """Compare the tiers on a web page.

    The page shows the tiers side by side: which passages moved, the reasons and
    the costs. Only this machine can open the page. Press Ctrl-C to stop. Without
    a language model, the page compares only the rules; './scripts/demo
    --playground' shows recorded replies.
    """
    require_web()
    dataset = None if questions is None else _load_dataset(questions)
    keywords = parse_arguments(arguments)
    # The socket comes first, so that a port in use fails before the index is loaded.
    with open_socket(port) as listener, open_search(function, config, sets) as search:
        tiers = Tiers(search.wrapped, has_own_tier=search.has_own_settings, arguments=keywords)
        # A hosted store may charge for each search, a store in files does not.
        is_free = function is None and tiers.middleware.settings.store.kind == "sqlite"
        tiers.warm_up(dataset.questions[:SEEDED] if dataset and is_free else ())
        notes = (
            [] if tiers.has_model else [f"{NO_MODEL} Only tiers that need no model are compared."]
        )
        page = Page(tiers, name=search.name, dataset=dataset, notes=notes)
        serve_page(page, listener)


def serve_page(page: Page, listener: socket.socket) -> None:
    """Print the notes and the address of *page*, and serve it until Ctrl-C."""
    address = f"http://{LOOPBACK}:{listener.getsockname()[1]}/"
    for text in page.notes:
        write_note(text)
    out.write(address)
    write_note("Press Ctrl-C to stop.")
    # A text browser would take over the terminal, and one on another machine shows no page.
    has_screen = sys.platform in ("win32", "darwin") or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")
    )
    if out.is_terminal and has_screen and not os.environ.get("SSH_CONNECTION"):
        # `webbrowser` waits for some browsers until they end. Meanwhile the page must be served.
        Thread(target=webbrowser.open, args=(address,), daemon=True).start()
        write_note("If your browser shows no page, open the address above.")

    async def serve_and_close() -> None:
        try:
            await serve_app(build_app(page), listener)
        finally:
            await page.tiers.middleware.aclose()

    asyncio.run(serve_and_close())


def _load_dataset(path: Path) -> Dataset:
    """Return the questions at *path*, with the ids of their answers if all of them have some."""
    try:
        return load_judged(path)
    except ConfigError:
        return load_questions(path)
