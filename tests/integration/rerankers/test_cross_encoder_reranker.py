from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from qtmiddleware.errors import ModelError
from qtmiddleware.protocols import Reranker
from qtmiddleware.providers import rerankers
from qtmiddleware.providers.rerankers import CrossEncoderReranker
from tests.support.tiny_models import bert_folder

pytestmark = pytest.mark.thorough

QUERY = "does jaco have any health concerns"
TEXTS = [
    "jaco has no health concerns",
    "the strategy of nike",
    "",
    "half \ud83d",
    "word " * 100,
    "one",
]


@pytest.fixture(autouse=True)
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bert_folder(tmp_path_factory.mktemp("tiny"), labels=1)


@pytest.fixture(scope="module")
def reranker(folder: Path) -> CrossEncoderReranker:
    return CrossEncoderReranker(str(folder))


def test_its_scores_are_those_of_the_model_in_order(
    reranker: CrossEncoderReranker, folder: Path
) -> None:
    from sentence_transformers import CrossEncoder

    readable = [text.replace("\ud83d", "\ufffd") for text in TEXTS]
    model = CrossEncoder(str(folder))
    expected = [
        float(model.predict([(QUERY, text)], show_progress_bar=False)[0]) for text in readable
    ]
    found = reranker.rerank(QUERY, TEXTS)
    assert isinstance(reranker, Reranker)
    assert found == pytest.approx(expected, abs=1e-5)
    assert len(set(found)) > 3


def test_long_texts_are_cut(reranker: CrossEncoderReranker) -> None:
    whole, longer = reranker.rerank(QUERY, ["word " * 40, "word " * 300_000])
    assert longer == pytest.approx(whole, abs=1e-6)


def test_code_of_a_model_that_is_not_known_here_does_not_run_unasked(
    folder: Path, tmp_path: Path
) -> None:
    own = shutil.copytree(folder, tmp_path / "own")
    config = json.loads((own / "config.json").read_text())
    code = {"auto_map": {"AutoConfig": "own_code.OwnConfig"}, "model_type": "of-ones-own"}
    (own / "config.json").write_text(json.dumps(config | code))
    (own / "own_code.py").write_text("raise SystemExit('the code was run')")
    with pytest.raises(ModelError, match=r"runs its own code; .*reranker=") as caught:
        CrossEncoderReranker(str(own)).rerank(QUERY, TEXTS)
    assert caught.value.reason == "unavailable"


def test_a_model_that_cannot_be_had_is_not_looked_for_again_at_once(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model"
    reranker = CrossEncoderReranker(str(path))
    with pytest.raises(ModelError, match=r"the folder .* does not exist"):
        reranker.rerank(QUERY, TEXTS)
    shutil.copytree(folder, path)
    with pytest.raises(ModelError, match=r"the folder .* does not exist"):
        reranker.rerank(QUERY, TEXTS)
    later = rerankers.monotonic() + rerankers.AGAIN_SECONDS
    monkeypatch.setattr(rerankers, "monotonic", lambda: later)
    assert len(reranker.rerank(QUERY, TEXTS)) == len(TEXTS)
