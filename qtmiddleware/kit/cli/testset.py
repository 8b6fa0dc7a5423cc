"""``qtm testset``: let a language model write judged questions about documents."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.cli.environment import NO_MODEL, load_config
from qtmiddleware.kit.cli.options import ConfigFile, Sets
from qtmiddleware.kit.cli.output import open_progress_bar, show_warnings, write_note
from qtmiddleware.preprocessing.text import format_count


def command(
    docs: Annotated[
        list[Path],
        Argument(help="Documents, folders or globs (in quotes) to write questions about."),
    ],
    folder: Annotated[Path, Option("--out", help="New folder for the test set.")],
    count: Annotated[int, Option(min=1, help="Number of questions.")] = 100,
    config: ConfigFile = None,
    sets: Sets = None,
) -> None:
    """Let the model write questions about your documents.

    Each question is written from one passage, and kept if the model finds its
    answer there. The folder can be measured with 'qtm bench --data FOLDER'. Its
    questions are easier than those of people: use it to find what is broken.
    """
    from qtmiddleware.kit.evaluation.testset import check_free, generate, passages_of, write
    from qtmiddleware.providers.llms import has_language_model, make_language_model

    settings = load_config(config, sets).settings
    if not has_language_model(settings):
        raise ConfigError(NO_MODEL, path="testset")
    check_free(folder)
    with show_warnings(), open_progress_bar() as update:
        passages = passages_of(docs, settings)
        generated = generate(
            passages,
            make_language_model(None, settings),
            count=count,
            name=folder.name,
            progress=lambda done, total: update("writing questions", done, total),
        )
    dropped = ", ".join(f"{number} {reason}" for reason, number in generated.dropped.items())
    if not generated.dataset.questions:
        raise ConfigError(
            f"the model wrote no usable question about the {len(passages):,} passages ({dropped})"
        )
    write(generated.dataset, folder)
    written = format_count(len(generated.dataset.questions), "question")
    text = f"Wrote {written} about {format_count(len(passages), 'passage')} to {folder}"
    if generated.cost_usd is not None:
        text += f", for ${generated.cost_usd:.4f}"
    if dropped:
        text += f"; dropped: {dropped}"
    write_note(text)
