from __future__ import annotations

import json
import logging
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import qtmiddleware as qtm
from qtmiddleware.errors import ConfigError, MissingExtra, ModelError
from qtmiddleware.kit.stores import MemoryStore
from qtmiddleware.protocols import Reranker
from qtmiddleware.providers.rerankers import cross_encoder
from qtmiddleware.providers.rerankers.cross_encoder import CrossEncoderReranker
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
JINA = "jinaai/jina-reranker-v2-base-multilingual"


@pytest.fixture(autouse=True)
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bert_folder(tmp_path_factory.mktemp("tiny"), labels=1)


@pytest.fixture(scope="module")
def reranker(folder: Path) -> CrossEncoderReranker:
    return CrossEncoderReranker(str(folder), device="cpu")


def test_its_scores_are_those_of_the_model_in_order(
    reranker: CrossEncoderReranker, folder: Path
) -> None:
    from sentence_transformers import CrossEncoder

    readable = [text.replace("\ud83d", "\ufffd") for text in TEXTS]
    model = CrossEncoder(str(folder), device="cpu")
    expected = [
        float(model.predict([(QUERY, text)], show_progress_bar=False)[0]) for text in readable
    ]
    found = reranker.rerank(QUERY, TEXTS)
    assert isinstance(reranker, Reranker)
    assert found == pytest.approx(expected, abs=1e-5)
    assert len(set(found)) > 3
    assert {type(score) for score in found} == {float}
    assert CrossEncoderReranker(model).rerank(QUERY, TEXTS) == pytest.approx(expected, abs=1e-5)


def test_a_loaded_model_goes_by_the_name_it_was_loaded_by(folder: Path) -> None:
    from sentence_transformers import CrossEncoder

    assert CrossEncoderReranker(CrossEncoder(str(folder), device="cpu")).name == str(folder)


def test_long_texts_are_cut_at_the_length_that_is_given(
    reranker: CrossEncoderReranker, folder: Path
) -> None:
    whole, longer = reranker.rerank(QUERY, ["word " * 40, "word " * 300_000])
    assert longer == pytest.approx(whole, abs=1e-6)
    short = CrossEncoderReranker(str(folder), device="cpu", max_length=8)
    one, other = short.rerank(QUERY, ["one two nike jaco", "one two strategy shoes"])
    assert one == pytest.approx(other, abs=1e-6)
    one, other = reranker.rerank(QUERY, ["one two nike jaco", "one two strategy shoes"])
    assert one != pytest.approx(other, abs=1e-6)


@settings(max_examples=25, deadline=None)
@given(
    st.text(st.characters(), max_size=40),
    st.lists(st.text(st.characters(), max_size=40), max_size=4),
)
def test_any_texts_have_finite_scores(
    reranker: CrossEncoderReranker, query: str, texts: list[str]
) -> None:
    scores = reranker.rerank(query, texts)
    assert len(scores) == len(texts)
    assert np.isfinite(scores).all()


def test_no_texts_load_nothing() -> None:
    assert CrossEncoderReranker("nobody/none").rerank(QUERY, []) == []


def test_threads_share_one_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sentence_transformers

    loads = []
    plain = sentence_transformers.CrossEncoder
    monkeypatch.setattr(
        sentence_transformers, "CrossEncoder", lambda *a, **k: (loads.append(a), plain(*a, **k))[1]
    )
    shared = CrossEncoderReranker(str(folder), device="cpu")
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda text: shared.rerank(QUERY, [text])[0], TEXTS * 3))
    assert loads == [(str(folder),)]
    assert found == pytest.approx(shared.rerank(QUERY, TEXTS) * 3, abs=1e-5)


def test_a_model_that_gives_classes_is_no_reranker(tmp_path: Path) -> None:
    classes = CrossEncoderReranker(str(bert_folder(tmp_path, labels=3)), device="cpu")
    with pytest.raises(ModelError, match="one finite number") as caught:
        classes.rerank(QUERY, TEXTS)
    assert caught.value.reason == "unparsable"


def test_loading_says_nothing_but_one_line_of_ours(
    folder: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        CrossEncoderReranker(str(folder), device="cpu").rerank(QUERY, TEXTS)
    assert capfd.readouterr() == ("", "")
    assert [record.getMessage() for record in caplog.records] == [f"loading {folder}"]


def test_a_model_that_is_not_here_and_cannot_be_fetched_says_what_to_do() -> None:
    with pytest.raises(
        ModelError, match=r"ms-marco-MiniLM-L6-v2.*hub cannot be reached.*name a folder"
    ) as caught:
        CrossEncoderReranker().rerank(QUERY, TEXTS)
    assert caught.value.reason == "unavailable"


def test_what_the_model_raises_is_a_model_error_without_the_texts() -> None:
    class Broken:
        def predict(self, pairs: list[tuple[str, str]], **options: Any) -> None:
            raise RuntimeError(f"no room for {pairs}")

    with pytest.raises(ModelError, match="the reranker Broken failed: RuntimeError") as caught:
        CrossEncoderReranker(Broken()).rerank(QUERY, TEXTS)
    assert QUERY not in str(caught.value)


def test_a_model_known_to_bring_code_is_refused_until_that_may_run() -> None:
    with pytest.raises(ConfigError, match=r"rerank\.trustRemoteCode") as caught:
        CrossEncoderReranker(JINA)
    assert caught.value.path == "rerank.trustRemoteCode"
    assert CrossEncoderReranker(JINA, trust_remote_code=True).name == JINA


OWN_CODE = """
from transformers import BertForSequenceClassification
from transformers.models.xlm_roberta.modeling_xlm_roberta import create_position_ids_from_input_ids

class OwnModel(BertForSequenceClassification):
    def forward(self, input_ids=None, **inputs):
        assert create_position_ids_from_input_ids(input_ids, 1).shape == input_ids.shape
        return super().forward(input_ids=input_ids, **inputs)
"""


def test_code_that_comes_with_a_model_runs_where_it_may_even_if_written_for_older_libraries(
    folder: Path, reranker: CrossEncoderReranker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules")
    )
    monkeypatch.setattr(sys, "path", [*sys.path])
    own = shutil.copytree(folder, tmp_path / "own")
    config = json.loads((own / "config.json").read_text())
    code = {
        "auto_map": {"AutoModelForSequenceClassification": "own_code.OwnModel"},
        "model_type": "bert",
    }
    (own / "config.json").write_text(json.dumps(config | code))
    (own / "own_code.py").write_text(OWN_CODE)
    found = CrossEncoderReranker(str(own), device="cpu", trust_remote_code=True)
    assert found.rerank(QUERY, TEXTS) == pytest.approx(reranker.rerank(QUERY, TEXTS), abs=1e-5)
    assert "OwnModel" in {type(module).__name__ for module in found._model.modules()}


def test_code_of_a_model_that_is_not_known_here_does_not_run_unasked(
    folder: Path, tmp_path: Path
) -> None:
    own = shutil.copytree(folder, tmp_path / "own")
    config = json.loads((own / "config.json").read_text())
    code = {"auto_map": {"AutoConfig": "own_code.OwnConfig"}, "model_type": "of-ones-own"}
    (own / "config.json").write_text(json.dumps(config | code))
    (own / "own_code.py").write_text("raise SystemExit('the code was run')")
    with pytest.raises(ModelError, match=r"runs its own code; .*rerank\.trustRemoteCode") as caught:
        CrossEncoderReranker(str(own), device="cpu").rerank(QUERY, TEXTS)
    assert caught.value.reason == "unavailable"


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(MissingExtra, match=r"qtmiddleware\[models\]"):
        CrossEncoderReranker().rerank(QUERY, TEXTS)


def test_nothing_heavy_is_imported_before_the_first_use() -> None:
    script = (
        "import sys; from qtmiddleware.config.settings import Settings\n"
        "from qtmiddleware.providers.rerankers import make_reranker\n"
        "repr(make_reranker(None, Settings()).name)\n"
        "print(sorted({'numpy', 'torch', 'transformers', 'pinecone'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=200
    )
    assert done.stdout == "[]\n"


def test_it_may_be_loaded_before_its_first_use(folder: Path) -> None:
    reranker = CrossEncoderReranker(str(folder), device="cpu")
    assert reranker.is_unread
    reranker.load()
    assert not reranker.is_unread
    assert len(reranker.rerank(QUERY, TEXTS)) == len(TEXTS)


def test_a_model_that_cannot_be_had_is_not_looked_for_again_at_once(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model"
    reranker = CrossEncoderReranker(str(path), device="cpu")
    with pytest.raises(ModelError, match=r"the folder .* does not exist"):
        reranker.rerank(QUERY, TEXTS)
    shutil.copytree(folder, path)
    assert not reranker.is_unread
    with pytest.raises(ModelError, match=r"the folder .* does not exist"):
        reranker.rerank(QUERY, TEXTS)
    later = cross_encoder.monotonic() + cross_encoder.AGAIN_SECONDS
    monkeypatch.setattr(cross_encoder, "monotonic", lambda: later)
    assert reranker.is_unread
    assert len(reranker.rerank(QUERY, TEXTS)) == len(TEXTS)


def test_why_a_model_cannot_be_had_is_noted() -> None:
    config = {
        "rerank": {"enabled": True, "model": "/no/such/folder"},
        "limits": {"deadlineMs": 50_000},
    }
    found = (
        qtm.QueryMiddleware(config)
        .wrap(lambda query: [{"text": text} for text in TEXTS])
        .retrieve(QUERY)
    )
    assert [(it.stage, it.reason) for it in found.degradations] == [("rerank", "failed")]
    (why,) = [why for stage, why in found.trace.notes if stage == "rerank"]
    assert "the folder /no/such/folder does not exist" in why


def test_opening_the_own_store_reads_the_rerankers_model(
    tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    store = MemoryStore(embedding_model="numbers", dimension=1)
    config = {"rerank": {"enabled": True, "model": str(tmp_path / "none")}}
    given: dict[str, Any] = {"store": store, "embedder": lambda texts: [[1.0] for _ in texts]}
    with qtm.QueryMiddleware(config, **given) as qm:
        assert caplog.messages == []
        assert qm.retriever(QUERY) == []
    assert [line for line in caplog.messages if "results will not be reranked: the folder" in line]


def test_the_rules_are_warmed_up_too_and_a_reranker_that_cannot_be_had_is_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    qm = qtm.QueryMiddleware({"rerank": {"enabled": True, "model": "./no/such/folder"}})
    assert qm.warm_up() is None
    assert "results will not be reranked" in caplog.text
