"""Loads a model by sentence-transformers: quietly, and without waiting long for a hub that is out of reach."""

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
"""Seconds the hub has to answer that it is there."""
CHARS_A_TOKEN: Final = 200
"""Characters the tokenizer looks at for every token the model keeps: all of a text would take a second a megabyte."""
MOST_TOKENS: Final = 8_192
"""What stands for the length of a model that does not say it, or says any."""
_NOISY: Final = ("sentence_transformers", "transformers", "huggingface_hub")
_LOCK: Final = ForkLock()

_log = get_logger("qtmiddleware.models")


def load_model(kind: str, model: str, failed: Callable[[str], Exception], **options: Any) -> Any:
    """The model named *model*, of the class *kind* of sentence-transformers, made with *options*.

    *model* is a folder, written as a path, or a name on the model hub. Where the hub does not
    answer within ten seconds, only what was downloaded before is looked at: by itself the library
    would try for more than a minute. Raises `MissingExtra` without the extra ``models``, and
    *failed* of a sentence that says what to do where the model cannot be had.
    """
    try:
        import sentence_transformers
    except ImportError as error:
        raise MissingExtra("sentence-transformers", "models") from error
    # Progress bars and logging belong to the whole process, so one model is loaded at a time.
    with _LOCK.free, _silence_libraries():
        here = Path(model).expanduser()
        if not here.exists() and _is_path(model):
            raise failed(
                f"the folder {model} does not exist; name a folder that holds a model, or a model"
                " of the hub"
            )
        # The libraries look in the working folder first, for a single word below this one; whoever
        # made that folder must not choose the model that a name of the hub means.
        for planted in () if _is_path(model) else (model, f"sentence-transformers/{model}"):
            if Path(planted).exists():
                said = (
                    f"{planted} is both a folder here and a name on the model hub; write"
                    f" ./{planted} for the folder"
                )
                raise failed(said)
        reached = here.exists() or _hub_answers(model)
        _log.info("loading %s", model, event="model_loading", model=model)
        try:
            if options["trust_remote_code"]:
                _restore_moved_function()
            return getattr(sentence_transformers, kind)(
                # By its whole path: a shorter one is taken for a name too, and the hub is asked
                # about it.
                str(here.absolute()) if here.exists() else model,
                local_files_only=not reached,
                **options,
            )
        except Exception as error:
            # The libraries quote HF_ENDPOINT.
            said = without_credentials(str(error).strip()) or type(error).__name__
            raise failed(
                _write_advice(model, reached=reached, folder=here.exists(), said=said)
            ) from error


def cut_text(model: Any, text: str) -> str:
    """As much of the beginning of *text* as the tokenizer of *model* has to look at, readable for it."""
    most = CHARS_A_TOKEN * min(getattr(model, "max_seq_length", None) or MOST_TOKENS, MOST_TOKENS)
    return replace_surrogates(text[:most])


def _write_advice(model: str, *, reached: bool, folder: bool, said: str) -> str:
    if "trust_remote_code" in said:
        return (
            f"the model {model!r} runs its own code; to allow that, pass"
            " trust_remote_code=True (for a reranker, rerank.trustRemoteCode)"
        )
    said = said.splitlines()[0]
    if folder:
        return f"the model in the folder {model} cannot be loaded: {said}"
    if reached:
        return (
            f"the model {model!r} cannot be loaded: {said}; check the name (organisation/model), or"
            " name a folder; a private model needs HF_TOKEN"
        )
    return (
        f"the model {model!r} is not on this machine, and the model hub cannot be reached: connect"
        " once to download the model, name a folder that holds the model, or set HF_HOME to its"
        " download folder"
    )


def _restore_moved_function() -> None:
    """Put a function of transformers back where code written for versions before 5 looks for it, Jina's among it."""
    module: Any = import_module("transformers.models.xlm_roberta.modeling_xlm_roberta")
    name = "create_position_ids_from_input_ids"
    moved = getattr(getattr(module, "XLMRobertaEmbeddings", None), name, None)
    if not hasattr(module, name) and moved is not None:
        setattr(module, name, moved)


def _is_path(model: str) -> bool:
    """Whether *model* can be no name on a hub: those are a word, or two with a slash between them."""
    return (
        model.startswith((".", "~"))
        or Path(model).is_absolute()
        or model.count("/") > 1
        or "\\" in model
    )


def _hub_answers(model: str) -> bool:
    """Whether the hub is there and says anything at all about *model*."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    try:
        HfApi().model_info(model, timeout=HUB_TIMEOUT)
    except HfHubHTTPError as error:
        return error.response.status_code < 500
    except Exception:
        # Out of reach in one of many ways, forbidden by HF_HUB_OFFLINE, or a name no hub could
        # have.
        return False
    return True


@contextmanager
def _silence_libraries() -> Iterator[None]:
    """No progress bars and no chatter of the libraries; as it was before, afterwards."""
    bars: Any = import_module("transformers.utils.logging")
    shown = bars.is_progress_bar_enabled()
    levels = {name: logging.getLogger(name).level for name in _NOISY}
    bars.disable_progress_bar()
    for name in _NOISY:
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        yield
    finally:
        if shown:
            bars.enable_progress_bar()
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
