"""Load sentence-transformers models without progress bars or long waits for the model hub."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from qtmiddleware.errors import MissingExtra, without_credentials
from qtmiddleware.providers import replace_surrogates
from qtmiddleware.runtime.forking import ForkLock
from qtmiddleware.runtime.logs import get_logger

HUB_TIMEOUT: Final = 10.0
"""How many seconds the model hub has to answer."""
CHARS_PER_TOKEN: Final = 200
"""How many characters of a text are kept per token that the model reads.

The tokenizer would take a second per megabyte of the rest, to no effect.
"""
MOST_TOKENS: Final = 8_192
"""The length in tokens that is assumed for a model that names none, or a larger one."""
_NOISY: Final = ("sentence_transformers", "transformers", "huggingface_hub")
_LOCK: Final = ForkLock()

_log = get_logger("qtmiddleware.models")


def load_model(
    kind: str, model: str, make_error: Callable[[str], Exception], **options: Any
) -> Any:
    """Return the sentence-transformers model named *model*.

    If the hub does not answer within ten seconds, only models downloaded before are used. The
    library itself would try for more than a minute.

    Args:
        kind: The name of the sentence-transformers class.
        model: A folder, written as a path, or a name on the model hub.
        make_error: Makes the exception for a model that cannot be loaded, from a sentence that says
            what to do.
        **options: Arguments for the class; ``trust_remote_code`` is required.

    Raises:
        MissingExtra: The extra ``models`` is missing.
        Exception: The exception that *make_error* makes.
    """
    try:
        import sentence_transformers
    except ImportError as error:
        raise MissingExtra("sentence-transformers", "models") from error
    # The settings of progress bars and logging are process-wide, so one model is loaded at a time.
    with _LOCK.free, _silence_libraries():
        folder = Path(model).expanduser()
        if not folder.exists() and _is_path(model):
            raise make_error(
                f"the folder {model} does not exist; name a folder that holds a model, or a model"
                " of the hub"
            )
        # The libraries look in the working folder first. Whoever made a folder there must not
        # replace the model of that name on the hub.
        for planted in () if _is_path(model) else (model, f"sentence-transformers/{model}"):
            if Path(planted).exists():
                message = (
                    f"{planted} is both a folder here and a name on the model hub; write"
                    f" ./{planted} for the folder"
                )
                raise make_error(message)
        hub_answered = folder.exists() or _hub_answers(model)
        _log.info("loading %s", model, event="model_loading", model=model)
        try:
            if options["trust_remote_code"]:
                _restore_moved_function()
            return getattr(sentence_transformers, kind)(
                # A relative path would also be taken for a name, and the hub would be asked.
                str(folder.absolute()) if folder.exists() else model,
                local_files_only=not hub_answered,
                **options,
            )
        except Exception as error:
            # The libraries quote HF_ENDPOINT, which may contain credentials.
            message = without_credentials(str(error).strip()) or type(error).__name__
            raise make_error(
                _explain_failure(
                    model, hub_answered=hub_answered, is_folder=folder.exists(), message=message
                )
            ) from error


def cut_text(model: Any, text: str) -> str:
    """Return the beginning of *text*, at least as much as *model* reads.

    Lone surrogates are replaced, because tokenizers reject them.
    """
    most = CHARS_PER_TOKEN * min(getattr(model, "max_seq_length", None) or MOST_TOKENS, MOST_TOKENS)
    return replace_surrogates(text[:most])


def _explain_failure(model: str, *, hub_answered: bool, is_folder: bool, message: str) -> str:
    if "trust_remote_code" in message:
        return (
            f"the model {model!r} runs its own code; to allow that, pass"
            " trust_remote_code=True (for a reranker, rerank.trustRemoteCode)"
        )
    message = message.splitlines()[0]
    if is_folder:
        return f"the model in the folder {model} cannot be loaded: {message}"
    if hub_answered:
        return (
            f"the model {model!r} cannot be loaded: {message}; check the name (organisation/model),"
            " or name a folder; a private model needs HF_TOKEN"
        )
    return (
        f"the model {model!r} is not on this machine, and the model hub cannot be reached: connect"
        " once to download the model, name a folder that holds the model, or set HF_HOME to its"
        " download folder"
    )


def _restore_moved_function() -> None:
    """Restore a function that transformers 5 moved, for the code of models such as Jina's."""
    module: Any = import_module("transformers.models.xlm_roberta.modeling_xlm_roberta")
    name = "create_position_ids_from_input_ids"
    moved = getattr(getattr(module, "XLMRobertaEmbeddings", None), name, None)
    if not hasattr(module, name) and moved is not None:
        setattr(module, name, moved)


def _is_path(model: str) -> bool:
    """Return whether *model* must be a path, because it cannot be a name on the hub.

    A name on the hub is one word, or two words with a slash between them.
    """
    return (
        model.startswith((".", "~"))
        or Path(model).is_absolute()
        or model.count("/") > 1
        or "\\" in model
    )


def _hub_answers(model: str) -> bool:
    """Return whether the model hub answers in time when asked about *model*.

    An answer that *model* is unknown counts, too.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    try:
        HfApi().model_info(model, timeout=HUB_TIMEOUT)
    except HfHubHTTPError as error:
        return error.response.status_code < 500
    except Exception:
        # The hub cannot be reached, HF_HUB_OFFLINE forbids it, or the name is not valid on a hub.
        return False
    return True


@contextmanager
def _silence_libraries() -> Iterator[None]:
    """Turn off the libraries' progress bars and their log records below ERROR."""
    bars: Any = import_module("transformers.utils.logging")
    was_enabled = bars.is_progress_bar_enabled()
    levels = {name: logging.getLogger(name).level for name in _NOISY}
    bars.disable_progress_bar()
    for name in _NOISY:
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        yield
    finally:
        if was_enabled:
            bars.enable_progress_bar()
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
