"""Folders with models for sentence-transformers: tiny ones with random weights, and the built-in one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

WORDS = "does jaco have any health concerns no has the a of nike strategy is to sell shoes word text one two"


def bert_folder(
    folder: Path,
    *,
    labels: int = 0,
    hidden: int = 16,
    limit: int = 32,
    tokenizer: Any = None,
    **config: Any,
) -> Path:
    """A BERT model in *folder*, for pairs with *labels* scores or, with none, for single texts."""
    import torch
    from transformers import (
        BertConfig,
        BertForSequenceClassification,
        BertModel,
        PreTrainedTokenizerFast,
    )

    words = tokenizer or word_tokenizer()
    options = {
        "vocab_size": words.get_vocab_size(),
        "hidden_size": hidden,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 2 * hidden,
        **config,
    }
    torch.manual_seed(7)
    if labels:
        model = BertForSequenceClassification(
            BertConfig(num_labels=labels, initializer_range=0.5, **options)
        )
    else:
        model = BertModel(BertConfig(initializer_range=0.5, **options))
    model.save_pretrained(folder)
    marks = {f"{name.lower()}_token": f"[{name}]" for name in ("UNK", "SEP", "PAD", "CLS", "MASK")}
    PreTrainedTokenizerFast(
        tokenizer_object=words, model_max_length=limit, **marks
    ).save_pretrained(folder)
    return folder


def word_tokenizer() -> Any:
    """A tokenizer that knows a few words and letters."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    marks = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    vocabulary = list(
        dict.fromkeys([*marks, *WORDS.split(), *letters, *(f"##{letter}" for letter in letters)])
    )
    made = Tokenizer(
        models.WordPiece({word: at for at, word in enumerate(vocabulary)}, unk_token="[UNK]")
    )
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return made


def embedder_folder(
    folder: Path, *, limit: int = 32, normalized: bool = False, **options: Any
) -> Path:
    """An embedding model in *folder*: BERT and the mean of its tokens, of length 1 only where *normalized*."""
    bert_folder(folder, limit=limit, **options)
    kinds = ["Transformer", "Pooling", *(["Normalize"] if normalized else [])]
    modules = [
        {
            "idx": at,
            "name": str(at),
            "path": f"{at}_{kind}" if at else "",
            "type": f"sentence_transformers.models.{kind}",
        }
        for at, kind in enumerate(kinds)
    ]
    pooling = {
        "word_embedding_dimension": options.get("hidden", 16),
        "pooling_mode_mean_tokens": True,
    }
    write(folder / "modules.json", modules)
    write(folder / "1_Pooling" / "config.json", pooling)
    write(folder / "sentence_bert_config.json", {"max_seq_length": limit, "do_lower_case": False})
    return folder


def minilm_folder(folder: Path, weights: Path, tokenizer: Path) -> Path:
    """all-MiniLM-L6-v2 as sentence-transformers expects it, with the official weights."""
    from tokenizers import Tokenizer

    read = Tokenizer.from_file(str(tokenizer))
    embedder_folder(folder, limit=256, normalized=True, hidden=384, tokenizer=read)
    shape = {
        "hidden_size": 384,
        "num_hidden_layers": 6,
        "num_attention_heads": 12,
        "intermediate_size": 1536,
    }
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    write(folder / "config.json", config | shape)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to(weights)
    return folder


def write(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")
