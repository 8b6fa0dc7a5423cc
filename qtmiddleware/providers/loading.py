"""Load models of sentence-transformers, by the name on the model hub or from a folder."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from qtmiddleware.config.errors import hide_secrets
from qtmiddleware.errors import MissingExtra
from qtmiddleware.providers import replace_surrogates
from qtmiddleware.runtime.logs import get_logger

CHARS_PER_TOKEN: Final = 200
"""The number of characters to keep of a text, per token of the model's maximum.

A longer text is cut before tokenizing, because tokenizing takes a second per megabyte.
"""
MOST_TOKENS: Final = 8_192
"""The maximum number of tokens per text, if the model reports no maximum or a larger one."""
# One word, or two words with a slash between them. Anything else is a path.
_HUB_NAME: Final = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?", re.ASCII)

_log = get_logger("qtmiddleware.models")


def load_model(
    class_name: str, model_name: str, make_error: Callable[[str], Exception], **options: Any
) -> Any:
    """Load the class *class_name* of sentence-transformers with *model_name*, and return the model.

    *model_name* is a name on the model hub or the path of a folder. Raises what *make_error* makes
    of a message, or `MissingExtra`.
    """
    try:
        import sentence_transformers
    except ImportError as error:
        raise MissingExtra("sentence-transformers", "models") from error
    source = model_name
    if _HUB_NAME.fullmatch(model_name):
        # The libraries look in the working folder first. A stranger's folder there must not replace
        # the hub's model of the same name.
        for planted in (model_name, f"sentence-transformers/{model_name}"):
            if Path(planted).exists():
                raise make_error(
                    f"{planted} is both a folder here and a name on the model hub; write"
                    f" ./{planted} for the folder"
                )
    else:
        source = str(Path(model_name).expanduser().absolute())
        if not Path(source).exists():
            raise make_error(f"the folder {model_name} does not exist")
    _log.info("loading %s", model_name, event="model_loading", model=model_name)
    try:
        if options["trust_remote_code"]:
            # The code of Jina's models imports this function from where transformers 4 had it.
            module: Any = import_module("transformers.models.xlm_roberta.modeling_xlm_roberta")
            function = module.XLMRobertaEmbeddings.create_position_ids_from_input_ids
            module.create_position_ids_from_input_ids = function
        return getattr(sentence_transformers, class_name)(source, **options)
    except Exception as error:
        # The libraries quote HF_ENDPOINT, which may contain credentials.
        cause = hide_secrets(str(error).strip()) or type(error).__name__
        advice = (
            f"cannot be loaded: {cause.splitlines()[0]}; check the name and the network, or name a"
            " folder; a private model needs HF_TOKEN"
        )
        if "trust_remote_code" in cause:
            advice = (
                "runs its own code; only a reranker's may be allowed, with rerank.trustRemoteCode"
            )
        raise make_error(f"the model {model_name!r} {advice}") from error


def cut_text(model: Any, text: str) -> str:
    """Return *text*, cut to a length that still fills the *model*'s maximum of tokens."""
    most = CHARS_PER_TOKEN * min(getattr(model, "max_seq_length", None) or MOST_TOKENS, MOST_TOKENS)
    return replace_surrogates(text[:most])
