"""Load sentence-transformers models without progress bars or long waits for the model hub."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from qtmiddleware.config.errors import hide_secrets
from qtmiddleware.errors import MissingExtra
from qtmiddleware.providers import replace_surrogates
from qtmiddleware.runtime.forking import make_lock
from qtmiddleware.runtime.logs import get_logger

HUB_TIMEOUT: Final = 10.0
"""The maximum time in seconds to wait for the model hub."""
CHARS_PER_TOKEN: Final = 200
"""The number of characters to keep of a text, per token of the model's maximum.

A longer text is cut before tokenizing, because tokenizing takes a second per megabyte.
"""
MOST_TOKENS: Final = 8_192
"""The maximum number of tokens per text, if the model reports no maximum or a larger one."""
# One word, or two words with a slash between them. Anything else is a path.
_HUB_NAME: Final = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?", re.ASCII)
_NOISY: Final = ("sentence_transformers", "transformers", "huggingface_hub")
_LOCK: Final = make_lock()

_log = get_logger("qtmiddleware.models")


def load_model(
    class_name: str, model_name: str, make_error: Callable[[str], Exception], **options: Any
) -> Any:
    """Load the class *class_name* of sentence-transformers with *model_name*, and return the model.

    *model_name* is a name on the model hub or the path of a folder. If the hub does not answer
    within ten seconds, the model must have been downloaded before. Raises what *make_error* makes
    of a message, or `MissingExtra`.
    """
    try:
        import sentence_transformers
    except ImportError as error:
        raise MissingExtra("sentence-transformers", "models") from error
    source = model_name
    if is_hub_name := _HUB_NAME.fullmatch(model_name) is not None:
        # The libraries look in the working folder first. A stranger's folder there must not replace
        # the hub's model of the same name.
        for planted in (model_name, f"sentence-transformers/{model_name}"):
            if Path(planted).exists():
                raise make_error(
                    f"{planted} is both a folder here and a name on the model hub; write"
                    f" ./{planted} for the folder"
                )
    elif (folder := Path(model_name).expanduser().absolute()).exists():
        source = str(folder)
    else:
        raise make_error(
            f"the folder {model_name} does not exist; name a folder that holds a model, or a model"
            " of the hub"
        )
    # The settings of progress bars and logging are process-wide, so one model is loaded at a time.
    with _LOCK, _silence_libraries():
        is_offline = is_hub_name and not _can_reach_hub(model_name)
        _log.info("loading %s", model_name, event="model_loading", model=model_name)
        try:
            if options["trust_remote_code"]:
                # The code of Jina's models imports this function from where transformers 4 had it.
                module: Any = import_module("transformers.models.xlm_roberta.modeling_xlm_roberta")
                function = module.XLMRobertaEmbeddings.create_position_ids_from_input_ids
                module.create_position_ids_from_input_ids = function
            model_class = getattr(sentence_transformers, class_name)
            return model_class(source, local_files_only=is_offline, **options)
        except Exception as error:
            # The libraries quote HF_ENDPOINT, which may contain credentials.
            cause = hide_secrets(str(error).strip()) or type(error).__name__
            advice = (
                f"cannot be loaded: {cause.splitlines()[0]}; check the name (organisation/model),"
                " or name a folder; a private model needs HF_TOKEN"
            )
            if "trust_remote_code" in cause:
                advice = (
                    "runs its own code; only a reranker's code may be allowed, with"
                    " rerank.trustRemoteCode (trust_remote_code=True)"
                )
            elif is_offline:
                advice = (
                    "is not on this machine, and the model hub cannot be reached: connect once to"
                    " download the model, name a folder that holds the model, or set HF_HOME to its"
                    " download folder"
                )
            raise make_error(f"the model {model_name!r} {advice}") from error


def cut_text(model: Any, text: str) -> str:
    """Return *text*, cut to a length that still fills the *model*'s maximum of tokens."""
    most = CHARS_PER_TOKEN * min(getattr(model, "max_seq_length", None) or MOST_TOKENS, MOST_TOKENS)
    return replace_surrogates(text[:most])


def _can_reach_hub(model_name: str) -> bool:
    """Return whether the hub answers within `HUB_TIMEOUT`, even if it has no such model."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    try:
        HfApi().model_info(model_name, timeout=HUB_TIMEOUT)
    except HfHubHTTPError as error:
        return error.response.status_code < 500
    except Exception:
        # The hub cannot be reached, HF_HUB_OFFLINE forbids it, or the name is not valid on a hub.
        return False
    return True


@contextmanager
def _silence_libraries() -> Iterator[None]:
    """Hide the libraries' progress bars and their log records below ERROR."""
    bars: Any = import_module("transformers.utils.logging")
    was_enabled = bars.is_progress_bar_enabled()
    levels = {logger: logger.level for logger in map(logging.getLogger, _NOISY)}
    bars.disable_progress_bar()
    for logger in levels:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        if was_enabled:
            bars.enable_progress_bar()
        for logger, level in levels.items():
            logger.setLevel(level)
