"""``qtm playground``: compare the results of several configurations on a local web page."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import webbrowser
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Thread
from typing import Annotated

import typer

from qtmiddleware.catalogue import STORES
from qtmiddleware.kit.cli.check import (
    Arguments,
    InPlaceOfIndex,
    import_function,
    open_wrapped_function,
    parse_argument,
)
from qtmiddleware.kit.cli.compare import has_search_settings
from qtmiddleware.kit.cli.console import ConfigFile, Sets, show_warnings
from qtmiddleware.kit.cli.environment import NO_MODEL, load_config
from qtmiddleware.kit.cli.query import SHOWN_ANYWAY, open_middleware
from qtmiddleware.kit.cli.terminal import write_note, write_output
from qtmiddleware.kit.evaluation import Dataset, load_questions
from qtmiddleware.kit.playground.page import Page
from qtmiddleware.kit.playground.server import (
    LOOPBACK,
    build_app,
    open_socket,
    require_web,
    serve_app,
)
from qtmiddleware.kit.playground.tiers import Tiers
from qtmiddleware.wrapping.wrapped import Wrapped

SEEDED = 24
"""The number of questions that are searched before the page opens.

From their results, the rules learn which scores are usual for the function. Therefore, the first
result on the page has a confidence.
"""

Port = Annotated[
    int | None,
    typer.Option(min=0, max=65_535, help="Port on this machine. Default: 8765, or a free port."),
]
NoOpen = Annotated[
    bool, typer.Option("--no-open", help="Do not open a browser; only print the address.")
]


def playground_command(
    function: InPlaceOfIndex = None,
    arguments: Arguments = None,
    config: ConfigFile = None,
    sets: Sets = None,
    questions: Annotated[
        Path | None,
        typer.Option(
            help="Example questions, with or without judgements: a file or a data set's folder."
        ),
    ] = None,
    port: Port = None,
    no_open: NoOpen = False,
) -> None:
    """Compare the tiers on a web page.

    The page shows the tiers side by side: which passages moved, the reasons and
    the costs. Only this machine can open the page. Press Ctrl-C to stop. Without
    a language model, the page compares only the rules; './scripts/demo
    --playground' shows recorded replies.
    """
    require_web()
    dataset = None if questions is None else load_questions(questions)
    arguments_by_name = dict(parse_argument(text) for text in arguments or ())
    # The socket comes first, so that a port in use fails before the index is loaded.
    with open_socket(port) as listener:
        if function is None:
            loaded = load_config(config, sets)
            with open_middleware(loaded, config) as middleware:
                name = f"{loaded.settings.store.kind} index"
                tiers = Tiers(
                    middleware.retriever,
                    has_own_tier=has_search_settings(loaded),
                    arguments=arguments_by_name,
                )
                # A hosted store may charge for each search, a store in files does not.
                is_free = STORES[loaded.settings.store.kind].keeps_files
                serve_tiers(
                    tiers,
                    listener,
                    name=name,
                    dataset=dataset,
                    should_open_browser=not no_open,
                    should_search_examples=is_free,
                )
            return
        fn = import_function(function)
        is_wrapped = isinstance(fn, Wrapped)
        with (
            show_warnings(hidden_events=SHOWN_ANYWAY),
            open_wrapped_function(fn, config, sets, {}) as wrapped,
        ):
            has_own_tier = is_wrapped or has_search_settings(wrapped.middleware.config)
            tiers = Tiers(wrapped, has_own_tier=has_own_tier, arguments=arguments_by_name)
            serve_tiers(
                tiers, listener, name=function, dataset=dataset, should_open_browser=not no_open
            )


def serve_tiers(
    tiers: Tiers,
    listener: socket.socket,
    *,
    name: str,
    dataset: Dataset | None,
    should_open_browser: bool,
    should_search_examples: bool = False,
) -> None:
    """Print the address of a page that compares *tiers*, and serve the page until Ctrl-C.

    Args:
        tiers: The configurations to compare.
        listener: The socket to serve on.
        name: The name of the function or index, for the page.
        dataset: The example questions on the page.
        should_open_browser: Whether to open the page in a browser.
        should_search_examples: Whether to search the examples before the page opens. Set this only
            if a search costs nothing.
    """
    notes = [] if tiers.has_model else [f"{NO_MODEL} Only tiers that need no model are compared."]
    tiers.warm_up(dataset.questions[:SEEDED] if dataset and should_search_examples else ())
    page = Page(tiers, name=name, dataset=dataset, notes=notes)
    serve_pages({"/": page}, listener, notes=notes, should_open_browser=should_open_browser)


def serve_pages(
    pages: Mapping[str, Page],
    listener: socket.socket,
    *,
    notes: Sequence[str] = (),
    should_open_browser: bool = True,
) -> None:
    """Print the address of *pages*, and serve the pages by their path until Ctrl-C.

    *notes* are sentences to print before the address.
    """
    address = f"http://{LOOPBACK}:{listener.getsockname()[1]}/"
    for text in notes:
        write_note(text)
    write_output(address, should_wrap=False)
    write_note("Press Ctrl-C to stop.")
    if should_open_browser and _has_browser():
        # `webbrowser` waits for some browsers until they end. Meanwhile the page must be served.
        Thread(target=webbrowser.open, args=(address,), daemon=True).start()
        write_note("If your browser shows no page, open the address above.")

    async def serve_and_close() -> None:
        try:
            await serve_app(build_app(pages), listener)
        finally:
            for page in pages.values():
                await page.tiers.middleware.aclose()

    asyncio.run(serve_and_close())


def _has_browser() -> bool:
    """Return whether a graphical browser can open; a text browser would take over the terminal."""
    if not sys.stdout.isatty() or os.environ.get("SSH_CONNECTION"):
        return False
    has_screen = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    return sys.platform in ("win32", "darwin") or bool(has_screen)
