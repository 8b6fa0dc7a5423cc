"""Parts of other packages: transforms, fusion methods and readers that are installed beside this one."""

from __future__ import annotations

import contextlib
import io
import json
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from pytest_httpserver import HTTPServer

from tests.support.embeddings_server import EmbeddingsServer
from tests.support.installed_package import install_package, run_python
from tests.support.model_server import ModelServer

PARTS = '''
from qtmiddleware.plugins import OwnFusion, OwnTransform

jargon = OwnTransform(prompt="Say it as the trade says it.", fields={"rewrite": 0.9})


def borda(rankings, sign, rrf_k):
    """Each list gives its first passage as many points as it has passages."""
    points = {}
    for ranking in rankings:
        for rank, key in enumerate(ranking.keys):
            points[key] = points.get(key, 0) + len(ranking.keys) - rank
    return points.items()


def read_tape(path, file):
    """A line of a tape is a second and what is said then."""
    for line in file.read().decode().splitlines():
        second, _, said = line.partition(" ")
        yield said + "\\n", {"record": int(second)}


counted = OwnFusion(merge=borda)


def stumble(rankings, sign, rrf_k):
    raise ValueError("Jaco")


failing = OwnFusion(merge=stumble)
inventing = OwnFusion(merge=lambda rankings, sign, rrf_k: [(("", "from nowhere"), 1.0)])
forgetful = OwnFusion(merge=lambda rankings, sign, rrf_k: [(rankings[0].keys[-1], 1.0)])
not_one = {"prompt": "Say it.", "fields": ["rewrite"]}
weightless = OwnTransform(prompt="Say it.", fields={"rewrite": -1})


def not_a_class(rankings, sign, rrf_k):
    return []
'''
ENTRY_POINTS = {
    "qtmiddleware.transforms": {
        "jargon": "trade_parts:jargon",
        "absent": "trade_parts:nothing_there",
        "unimportable": "no_such_module:jargon",
        "not_one": "trade_parts:not_one",
        "weightless": "trade_parts:weightless",
        # A name that is built in is never looked up, so this one cannot take its place.
        "hyde": "trade_parts:nothing_there",
    },
    "qtmiddleware.fusion": {
        "borda": "trade_parts:counted",
        "failing": "trade_parts:failing",
        "inventing": "trade_parts:inventing",
        "forgetful": "trade_parts:forgetful",
        "not_one": "trade_parts:not_a_class",
        "max": "trade_parts:nothing_there",
    },
    "qtmiddleware.readers": {
        "tape": "trade_parts:read_tape",
        "broken": "trade_parts:nothing_there",
    },
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the package with these parts is installed in."""
    return install_package(tmp_path_factory.mktemp("parts"), "trade_parts", PARTS, ENTRY_POINTS)


def ran(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


WORLD = """
import json, sys
import qtmiddleware as qtm
from qtmiddleware.testing import ScriptedModel

PASSAGES = {
    "a": "The kidneys filter the blood.",
    "b": "Renal failure means that the kidneys stop working.",
    "c": "The liver lies below the ribs.",
}
ORDERS = {"why do kidneys stop": "acb", "causes of renal failure": "bca"}

def search(query, top_k=3):
    ids = ORDERS.get(query, "abc")[:top_k]
    return [{"id": it, "score": 1.0 - n / 10, "text": PASSAGES[it]} for n, it in enumerate(ids)]

def retrieve(config, **more):
    model = ScriptedModel({"rewrite": "causes of renal failure"})
    found = qtm.QueryMiddleware(config, client=model, **more).wrap(search).retrieve("why do kidneys stop")
    return found, model

def told(config):
    try:
        qtm.Config.load(config)
    except qtm.ConfigError as error:
        return [str(error), error.path, error.value]
"""
ENTERED = """
found, model = retrieve({"transformationType": "jargon"})
config = qtm.Config.load({"transformationType": "jargon"})
print(json.dumps({
    "variants": [[it.kind, it.text, it.weight] for it in found.variants],
    "status": found.status,
    "stages": [it.name for it in found.trace.stages],
    "told": "Say it as the trade says it." in model.prompts[0].system,
    "shown": config.to_dict()["transformationType"],
}))
"""


def test_a_transform_of_an_installed_package_is_asked_for_by_its_name(
    site: Path, tmp_path: Path
) -> None:
    found = ran(run_python(WORLD + ENTERED, tmp_path, site))
    assert found["variants"] == [
        ["original", "why do kidneys stop", 1.0],
        ["rewrite", "causes of renal failure", 0.9],
    ]
    assert (found["status"], found["told"], found["shown"]) == ("full", True, "jargon")
    assert "transform.jargon" in found["stages"]


CONFIG = {
    "transformationType": "plain_words",
    "transforms": {
        "plain_words": {
            "prompt": "Say it in plain words.",
            "fields": {"rewrite": 0.7, "stepBack": None},
        }
    },
}


@pytest.mark.parametrize("command", [("transform",), ("compare", "--function", "app:search")])
def test_a_transform_of_a_named_config_file_is_asked_for_on_the_command_line(
    command: tuple[str, ...], httpserver: HTTPServer, tmp_path: Path
) -> None:
    model = ModelServer(
        httpserver, {"rewrite": "causes of renal failure", "step_back": "diseases of the kidneys"}
    )
    (tmp_path / "mine.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    (tmp_path / "app.py").write_text(WORLD, encoding="utf-8")
    asked = [*command, "why do kidneys stop", "-c", "mine.json", "--json"]
    script = f"import sys; sys.argv[1:] = {asked!r}\nfrom qtmiddleware.kit.cli import main\nmain()"
    done = run_python(
        script, tmp_path, tmp_path, OPENAI_API_KEY="sk-unused", QTM_LLM_BASE_URL=model.url
    )
    assert "causes of renal failure" in json.dumps(ran(done))
    assert any("Say it in plain words." in json.dumps(body["messages"][0]) for body in model.bodies)


def test_a_transform_of_a_named_config_file_is_measured_by_bench(
    httpserver: HTTPServer, tmp_path: Path
) -> None:
    model = ModelServer(
        httpserver, {"rewrite": "causes of renal failure", "step_back": "diseases of the kidneys"}
    )
    (tmp_path / "mine.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    (tmp_path / "app.py").write_text(WORLD, encoding="utf-8")
    (tmp_path / "asked.csv").write_text(
        "question,id\nwhy do kidneys stop,b\nwhere is the liver,c\n"
    )
    asked = [
        "bench",
        "--function",
        "app:search",
        "--data",
        "asked.csv",
        "-c",
        "mine.json",
        "--systems",
        "rules",
    ]
    script = f"import sys; sys.argv[1:] = {[*asked, '--yes', '--json']!r}\nfrom qtmiddleware.kit.cli import main\nmain()"
    done = run_python(
        script, tmp_path, tmp_path, OPENAI_API_KEY="sk-unused", QTM_LLM_BASE_URL=model.url
    )
    assert '"mine"' in json.dumps(ran(done))
    assert len(model.bodies) == 2
    assert all("Say it in plain words." in json.dumps(body["messages"][0]) for body in model.bodies)


def test_a_config_file_nobody_named_adds_no_transform(tmp_path: Path) -> None:
    (tmp_path / "query-transform.config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    script = "import sys; sys.argv[1:] = ['preprocess', 'why do kidneys stop']\n"
    done = run_python(script + "from qtmiddleware.kit.cli import main\nmain()", tmp_path)
    assert done.returncode == 2
    assert (
        "query-transform.config.json was found in this folder and must not set transforms"
        in done.stderr
    )


FUSED = """
def order(method, **more):
    config = {"transformationType": "jargon", "fusion": {"method": method}, "keywordEvidence": {"enabled": False}}
    found, _ = retrieve({**config, **more})
    return {
        "ids": [it.id for it in found.matches],
        "response": [it["id"] for it in found.response],
        "degradations": [[it.stage, it.reason, it.detail] for it in found.degradations],
    }

print(json.dumps({name: order(name) for name in ("borda", "failing", "inventing", "forgetful")}))
"""


def test_a_fusion_method_of_an_installed_package_merges_the_lists(
    site: Path, tmp_path: Path
) -> None:
    found = ran(run_python(WORLD + FUSED, tmp_path, site))
    # Points: a 3 + 1, b 1 + 3, c 2 + 2; of equal ones the question's own list decides.
    assert found["borda"] == {
        "ids": ["a", "c", "b"],
        "response": ["a", "c", "b"],
        "degradations": [],
    }


def test_a_fusion_method_that_fails_leaves_the_order_of_the_plain_function(
    site: Path, tmp_path: Path
) -> None:
    found = ran(run_python(WORLD + FUSED, tmp_path, site))
    for name in ("failing", "inventing"):
        assert found[name]["response"] == ["a", "c", "b"]
        assert found[name]["degradations"] == [["fusion", "failed", "ValueError"]]


def test_passages_a_fusion_method_leaves_out_follow_in_their_order(
    site: Path, tmp_path: Path
) -> None:
    found = ran(run_python(WORLD + FUSED, tmp_path, site))
    assert found["forgetful"] == {
        "ids": ["b", "a", "c"],
        "response": ["b", "a", "c"],
        "degradations": [],
    }


BROKEN = """
print(json.dumps([
    told({"transformationType": "absent"}), told({"transformationType": "unimportable"}),
    told({"transformationType": "not_one"}), told({"transformationType": "weightless"}),
    told({"fusion": "not_one"}), told({"transformationType": "jargn"}), told({"fusion": "bordas"}),
    told({"transformationType": "rewrit"}),
]))
"""


def test_a_part_that_cannot_be_used_is_told_when_the_config_is_loaded(
    site: Path, tmp_path: Path
) -> None:
    told = ran(run_python(WORLD + BROKEN, tmp_path, site))
    messages = [message for message, _, _ in told]
    assert (
        "the entry point 'absent' of qtmiddleware.transforms cannot be imported: AttributeError"
        in messages[0]
    )
    assert (
        "cannot be imported: ModuleNotFoundError: No module named 'no_such_module'" in messages[1]
    )
    assert "must be a qtmiddleware.plugins.OwnTransform, not dict" in messages[2]
    assert "fields.rewrite must be a number from 0 to 100, or null" in messages[3]
    assert "must be a qtmiddleware.plugins.OwnFusion, not function" in messages[4]
    assert messages[5].startswith("transformationType must be one of rewrite, ")
    assert messages[7].endswith("; did you mean rewrite?")
    paths = [path for _, path, _ in told]
    assert paths[:4] == ["transformationType"] * 4
    assert paths[4:] == [
        "fusion.method",
        "transformationType",
        "fusion.method",
        "transformationType",
    ]


def test_a_name_of_two_packages_is_refused(site: Path, tmp_path: Path) -> None:
    points = {"qtmiddleware.transforms": {"jargon": "other_parts:jargon"}}
    other = install_package(tmp_path, "other_parts", PARTS, points)
    message, *_ = ran(
        run_python(
            WORLD + "print(json.dumps(told({'transformationType': 'jargon'})))",
            tmp_path,
            site,
            other,
        )
    )
    assert (
        "'jargon' of qtmiddleware.transforms is defined by other_parts and trade_parts" in message
    )


PICKLED = """
import pickle
config = qtm.Config.load({"transformationType": "jargon"})
with open("config.pickle", "wb") as file:
    pickle.dump(config, file)
print("null")
"""
UNPICKLED = """
import pickle
try:
    pickle.load(open("config.pickle", "rb"))
except qtm.ConfigError as error:
    print(json.dumps(str(error)))
"""


def test_a_config_that_comes_to_where_its_package_is_missing_says_so(
    site: Path, tmp_path: Path
) -> None:
    ran(run_python(WORLD + PICKLED, tmp_path, site))
    assert "no installed package has an entry point 'jargon'" in ran(
        run_python(WORLD + UNPICKLED, tmp_path)
    )


UNASKED = """
import importlib.metadata
asked = []
importlib.metadata.entry_points = lambda **given: asked.append(given["group"]) or ()
retrieve({"transformationType": "hyde", "fusion": {"method": "max"}})
retrieve({"transformationType": "plain", "transforms": {"plain": {"prompt": "Say it.", "fields": ["rewrite"]}}})
from pathlib import Path
from qtmiddleware.kit.documents.finding import find_documents
Path("a.md").write_text("x")
Path("b.txt").write_text("x")
found = [it.name for it in find_documents(".")]
known, asked[:] = list(asked), []
told({"transformationType": "unknown"})
print(json.dumps([found, known, asked]))
"""
FREE = """
import sys
import qtmiddleware as qtm
search = qtm.middleware(lambda query, top_k=3: [{"id": "a", "score": 1.0, "text": "The kidneys filter."}])
search("what do the kidneys do")
import json
print(json.dumps([it for it in ("importlib.metadata", "qtmiddleware.plugins", "pydantic") if it in sys.modules]))
"""


def test_nothing_is_looked_up_for_names_that_are_known(site: Path, tmp_path: Path) -> None:
    found, known, asked = ran(run_python(WORLD + UNASKED, tmp_path, site))
    assert found == ["a.md", "b.txt"]
    assert [group for group in known if group.startswith("qtmiddleware")] == []
    assert asked == ["qtmiddleware.transforms"]


def test_a_free_call_does_not_load_what_looks_parts_up(site: Path, tmp_path: Path) -> None:
    assert ran(run_python(FREE, tmp_path, site)) == []


def ingest(folder: Path, site: Path, url: str) -> subprocess.CompletedProcess[str]:
    asked = ["ingest", "talks", "--set", "embeddingModel=text-embedding-3-small", "--json"]
    asked += ["--set", "embeddingDimensions=8"]
    script = f"import sys; sys.argv[1:] = {asked!r}\nfrom qtmiddleware.kit.cli import main\nmain()"
    return run_python(script, folder, site, OPENAI_API_KEY="sk-unused", OPENAI_BASE_URL=url)


def test_a_reader_of_an_installed_package_reads_files_of_its_ending(
    site: Path, tmp_path: Path, httpserver: HTTPServer
) -> None:
    service = EmbeddingsServer(httpserver)
    (tmp_path / "talks").mkdir()
    (tmp_path / "talks" / "monday.tape").write_text(
        "5 The kidneys filter the blood.\n9 The liver does not.\n"
    )
    (tmp_path / "talks" / "tuesday.broken").write_text("x")
    (tmp_path / "talks" / "notes.other").write_text("x")
    report = ran(ingest(tmp_path, site, service.url))
    assert (report["documents"], report["chunks"]) == (1, 1)
    assert report["left_out"] == {".other": 1}
    ((path, reason),) = [(Path(it["path"]).name, it["reason"]) for it in report["skipped"]]
    assert (path, reason.split(" (")[0]) == ("tuesday.broken", "its reader failed")
    assert service.sent == [["The kidneys filter the blood.\nThe liver does not.\n"]]


PAGE = (Path(__file__).parents[2] / "docs/your-own-parts.md").read_text(encoding="utf-8")


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def test_the_page_shows_what_its_config_prints() -> None:
    (code,), (printed, _) = blocks("python"), blocks("text")
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(code, "your-own-parts.md", "exec"), {})
    assert out.getvalue() == printed


def test_the_package_of_the_page_works_as_it_is_written(
    tmp_path: Path, httpserver: HTTPServer
) -> None:
    (module,), (project,), (code,), (_, printed) = map(
        blocks, ("python module", "toml", "python installed", "text")
    )
    points = tomllib.loads(project)["project"]["entry-points"]
    installed = install_package(tmp_path, "clinic_parts", module, points)
    done = run_python(code, tmp_path, installed)
    assert (done.stdout, done.stderr) == (printed, "")
    (tmp_path / "talks").mkdir()
    (tmp_path / "talks" / "yoga.sub").write_text("95 Now breathe out\n99 and in\n")
    service = EmbeddingsServer(httpserver)
    assert ran(ingest(tmp_path, installed, service.url))["documents"] == 1
    assert service.sent == [["Now breathe out\nand in\n"]]
