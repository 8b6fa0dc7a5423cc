"""``qtm playground``: compare the results of several configurations on a local web page."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from qtmiddleware.catalogue import STORES
from qtmiddleware.kit.cli.browser import open_page_in_browser
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
from qtmiddleware.kit.evaluation import Question, load_questions
from qtmiddleware.kit.playground.page import Page
from qtmiddleware.kit.playground.server import (
    LOOPBACK,
    make_token,
    open_socket,
    require_web,
    serve_page,
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
            help="Example questions: a JSON file as for compare, or the folder of a data set."
        ),
    ] = None,
    port: Port = None,
    no_open: NoOpen = False,
) -> None:
    """Compare the tiers on a web page.

    The page shows the tiers side by side: which passages moved, the reasons and
    the costs. Only this machine can open the page, at an address that is new at
    each start and cannot be guessed. Press Ctrl-C to stop. Without a language
    model, the page compares only the rules; './scripts/demo --playground' shows
    recorded replies.
    """
    require_web()
    examples = () if questions is None else load_questions(questions).questions
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
                    examples=examples,
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
                tiers, listener, name=function, examples=examples, should_open_browser=not no_open
            )


def serve_tiers(
    tiers: Tiers,
    listener: socket.socket,
    *,
    name: str,
    examples: Sequence[Question] = (),
    should_open_browser: bool = True,
    should_search_examples: bool = False,
) -> None:
    """Print the address of a page that compares *tiers*, and serve the page until Ctrl-C.

    Args:
        tiers: The configurations to compare.
        listener: The socket to serve on.
        name: The name of the function or index, for the page.
        examples: The example questions on the page.
        should_open_browser: Whether to open the page in a browser.
        should_search_examples: Whether to search the examples before the page opens. Set this only
            if a search costs nothing.
    """
    skip_reason = "" if tiers.has_model else NO_MODEL
    page = Page(tiers, name=name, examples=examples, skip_reason=skip_reason)
    tiers.warm_up(examples[:SEEDED], should_search_examples=should_search_examples)
    notes = [f"{NO_MODEL} Only tiers that need no model are compared."] if skip_reason else []
    serve_pages(page, listener, notes=notes, should_open_browser=should_open_browser)


def serve_pages(
    page: Page,
    listener: socket.socket,
    *,
    other_pages: Mapping[str, Page] | None = None,
    notes: Sequence[str] = (),
    should_open_browser: bool = True,
) -> None:
    """Print the address of web pages, and serve the pages until Ctrl-C.

    Args:
        page: The page at the printed address.
        listener: The socket to serve on.
        other_pages: Further pages, by the name in the page's address.
        notes: Sentences to print before the address.
        should_open_browser: Whether to open the page in a browser.
    """
    token = make_token()
    address = f"http://{LOOPBACK}:{listener.getsockname()[1]}/{token}/"
    for text in notes:
        write_note(text)
    write_output(address, should_wrap=False)
    write_note("Press Ctrl-C to stop.")
    with (
        open_page_in_browser(address)
        if should_open_browser
        else nullcontext(enter_result=False) as is_opened
    ):
        if is_opened:
            write_note("If your browser shows no page, open the address above.")
        close_pages = partial(_close_pages, [page, *(other_pages or {}).values()])
        asyncio.run(serve_page(page, listener, token, close_pages, other_pages))


async def _close_pages(pages: Sequence[Page]) -> None:
    for page in pages:
        await page.tiers.middleware.aclose()
