"""``qtm tune`` on small judged collections, with real vectors and recorded replies."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from qtmiddleware.config import Config
from tests.support.command_line import Ended

pytestmark = pytest.mark.thorough

Run = Callable[..., Ended]
CONFIG = "query-transform.config.json"


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all of these tests keep vectors and indexes: none of them is about making those."""
    return tmp_path_factory.mktemp("kept")


@pytest.fixture
def tune(qtm: Run, cache: Path) -> Run:
    """Run ``qtm tune`` with that cache."""

    def run(*arguments: str, **options: Any) -> Ended:
        return qtm("tune", "--cache", str(cache), *arguments, **options)

    return run


def pumps(folder: Path, *, count: int = 40, shuffled: bool = False) -> Path:
    """*count* questions that speak of pumps by another name than the passages do, whose codes the replies know."""
    codes = [
        f"{'KTRZ'[number % 4]}{'QXV'[number % 3]}-{number * 37 + 1000}" for number in range(count)
    ]
    answers = random.Random(5).sample(range(count), count) if shuffled else list(range(count))
    (folder / "qrels").mkdir(parents=True)
    written = {
        "corpus.jsonl": [
            {"_id": f"p{at}", "text": f"Pump {code} runs at {at + 2} bar."}
            for at, code in enumerate(codes)
        ],
        "queries.jsonl": [
            {"_id": f"q{at}", "text": f"What does the pump in hall {at + 1} need?"}
            for at in range(count)
        ],
        "replies.jsonl": [
            {"_id": f"q{at}", "hyde": f"Pump {code} runs at 3 bar."}
            for at, code in enumerate(codes)
        ],
    }
    for name, lines in written.items():
        (folder / name).write_text(
            "".join(json.dumps(each) + "\n" for each in lines), encoding="utf-8"
        )
    judged = "".join(f"q{at}\tp{answers[at]}\t1\n" for at in range(count))
    (folder / "qrels" / "test.tsv").write_text(judged, encoding="utf-8")
    return folder


def systems(told: Mapping[str, Any]) -> dict[str, Any]:
    return {system["name"]: system for system in told["comparison"]["systems"]}


def test_a_config_within_the_budget_is_written_and_told(tune: Run, tmp_path: Path) -> None:
    (tmp_path / CONFIG).write_text("{}", encoding="utf-8")
    (tmp_path / "schema.json").write_text("{}", encoding="utf-8")
    data = pumps(tmp_path / "pumps")
    ended = tune(
        "--data", str(data), "--recordings", str(data / "replies.jsonl"), "--model", "gpt-4.1-mini",
        "--model-ms", "500", "--max-added-ms", "9000", "--json", "--force",
    )  # fmt: skip
    assert ended.code == 0, ended.err
    told = json.loads(ended.out)
    written = json.loads((tmp_path / CONFIG).read_text(encoding="utf-8"))
    assert told["isBetter"]
    assert told["written"] == CONFIG
    assert written["$schema"] == "./schema.json"
    loaded = Config.from_file(tmp_path / CONFIG, environ={}).settings
    assert (
        loaded
        == Config.load(
            {**told["config"], "transformationModel": "gpt-4.1-mini"}, environ={}
        ).settings
    )
    assert written["transformationType"] == loaded.transformation_type != "none"
    assert written["transformationModel"] == "gpt-4.1-mini"
    assert told["budget"]["maxAddedMs"] == 9000
    assert told["comparison"]["questions"] == told["training"]["questions"] == 20
    assert {"raw", "rules", "combined"} <= set(systems(told))
    assert systems(told)["combined"]["addedMs"]["p50"] > 500
    assert any("Recorded replies" in said for said in told["comparison"]["notes"])
    tried = {trial["name"].split(";")[0] for trial in told["training"]["trials"]}
    assert tried == {"raw", "rules", "hyde", "combined"}


def test_the_figures_reported_are_those_that_bench_measures_with_the_file_on_the_same_questions(
    tune: Run, qtm: Run, cache: Path, tmp_path: Path
) -> None:
    data = pumps(tmp_path / "pumps")
    replayed = ("--data", str(data), "--recordings", str(data / "replies.jsonl"), "--json")
    told = json.loads(tune(*replayed, "--out", "own.json").out)
    held = systems(told)["raw"]["perQuery"]["nDCG@10"]
    judged = "".join(f"{question}\tp{question[1:]}\t1\n" for question in held)
    (data / "qrels" / "test.tsv").write_text(judged, encoding="utf-8")
    again = qtm(
        "bench",
        "--cache",
        str(cache),
        *replayed,
        "--config",
        "own.json",
        "--systems",
        "raw",
        "--no-deep",
    )
    assert again.code == 0, again.err
    measured = {system["name"]: system for system in json.loads(again.out)["systems"]}
    assert qtm("config", "check", "own.json").code == 0
    assert measured["own"]["perQuery"] == systems(told)[told["chosen"]]["perQuery"]
    assert measured["raw"]["perQuery"] == systems(told)["raw"]["perQuery"]


def test_the_file_names_the_models_that_it_was_tuned_with_and_nothing_else_of_the_environment(
    tune: Run, tmp_path: Path
) -> None:
    data = pumps(tmp_path / "pumps")
    ended = tune(
        "--data", str(data), "--recordings", str(data / "replies.jsonl"), "--out", "new/own.json",
        QTM_LLM_TEMPERATURE="0.5", QTM_TOP_K="7",
    )  # fmt: skip
    assert ended.code == 0, ended.err
    assert ended.out.startswith("Measured on the held-out half of the questions:")
    written = json.loads((tmp_path / "new" / "own.json").read_text(encoding="utf-8"))
    assert written["llm"] == {"temperature": 0.5}
    assert "topK" not in written


def test_who_interrupts_it_keeps_the_config_that_was_there_and_finds_nothing_half_written(
    cache: Path, tmp_path: Path
) -> None:
    data = pumps(tmp_path / "pumps")
    (tmp_path / CONFIG).write_text("{}", encoding="utf-8")
    arguments = [
        "tune",
        "--data",
        str(data),
        "--recordings",
        str(data / "replies.jsonl"),
        "--force",
    ]
    with subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from qtmiddleware.kit.cli import main; main()",
            *arguments,
            "--cache",
            str(cache),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
    ) as running:
        assert running.stderr is not None
        running.stderr.readline()  # the first note: the search begins
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=200)
    assert running.returncode == 130
    assert b"interrupted" in err
    assert b"Traceback" not in err
    assert out == b""
    assert {path.name for path in tmp_path.iterdir()} == {CONFIG, "pumps"}
    assert (tmp_path / CONFIG).read_text(encoding="utf-8") == "{}"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--out", "pumps"), "pumps is a folder; name a file in it with --out"),
        (("--out", "config.toml"), "--out must end in .json"),
        (("--out", "taken/own.json"), "taken cannot be written: "),
        (("--report", "taken"), "name another place with --report"),
        (("--model-ms", "inf"), "--model-ms"),
        (("--max-added-ms", "inf"), "max_added_ms must be a finite number"),
        (("--max-hurt-rate", "nan"), "--max-hurt-rate"),
        (("--seed", "-1"), "--seed"),
        (("--questions", "39"), "39 judged questions are too few to tune on"),
        (("--recordings", "other.jsonl"), "name the recording of this data set"),
    ],
)
def test_what_cannot_be_done_is_a_usage_error_that_names_it(
    tune: Run, tmp_path: Path, arguments: tuple[str, ...], told: str
) -> None:
    pumps(tmp_path / "pumps")
    (tmp_path / "taken").write_text("mine", encoding="utf-8")
    (tmp_path / "other.jsonl").write_text(
        '{"_id": "other", "query": "Other?", "hyde": "Other."}\n', encoding="utf-8"
    )
    ended = tune("--data", "pumps", *arguments)
    assert ended.code == 2, ended.err
    assert told in " ".join(ended.err.split())
    assert "Traceback" not in ended.err
    assert (tmp_path / "taken").read_text(encoding="utf-8") == "mine"
    assert not (tmp_path / CONFIG).exists()


def test_judgements_at_random_are_refused_reported_and_not_written(
    tune: Run, tmp_path: Path
) -> None:
    data = pumps(tmp_path / "random", shuffled=True)
    ended = tune("--data", str(data), "--report", "report")
    assert ended.code == 1, ended.err
    assert "No language model was called" in ended.err
    assert "20 questions, 40 passages" in ended.out
    assert "Refused: " in ended.out
    assert f"{CONFIG} was not written." in ended.out
    assert not (tmp_path / CONFIG).exists()
    report = tmp_path / "report"
    assert "- Refused: " in (report / "tune.md").read_text(encoding="utf-8")
    page = (report / "tune.html").read_text(encoding="utf-8")
    assert "<h1>Nothing is recommended: " in page
    assert " beats " not in page + ended.out
    assert json.loads((report / "tune.json").read_text(encoding="utf-8"))["isBetter"] is False


def test_too_few_questions_are_refused_in_plain_words(tune: Run, tmp_path: Path) -> None:
    ended = tune("--data", str(pumps(tmp_path / "few", count=10)))
    assert ended.code == 2
    assert "10 judged questions are too few to tune on: 40 are needed" in ended.err
    assert "Traceback" not in ended.err


def test_a_config_that_is_there_is_not_overwritten_unless_asked(tune: Run, tmp_path: Path) -> None:
    (tmp_path / CONFIG).write_text("{}", encoding="utf-8")
    ended = tune("--data", str(tmp_path))
    assert ended.code == 2
    assert "--force" in ended.err
    assert (tmp_path / CONFIG).read_text(encoding="utf-8") == "{}"


def test_an_impossible_budget_is_a_usage_error(tune: Run, tmp_path: Path) -> None:
    ended = tune("--data", str(tmp_path), "--max-call-rate", "35")
    assert ended.code == 2
    assert "max-call-rate" in ended.err
