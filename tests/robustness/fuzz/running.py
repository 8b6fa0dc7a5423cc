"""One target under the coverage-guided fuzzer, in a process of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

from tests.support.hostile_corpus import SHORT

KEPT: Final = Path(".tmp/fuzz")
MOST_BYTES: Final = 4_096
SHAPES: Final = (
    b'{"choices": [{"index": 0, "message": {"content": "a", "refusal": null}, "finish_reason": "stop"}]}',
    b'{"choices": [{"message": {"content": [{"type": "text", "text": "a"}]}}], "error": {"code": 429}}',
    (
        b'.data: {"choices": [{"index": 0, "delta": {"content": "a\\ud83d"}, "finish_reason": null}]}\r\n\r\n'
        b'data: {"choices": [{"delta": {"content": "\\ude00"}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
    ),
    (
        b'{"_id": "a", "title": "b", "text": "c", "metadata": {"d": 1}}\n\x00{"_id": "q", "text": "e"}\n'
        b"\x00query-id\tcorpus-id\tscore\nq\ta\t1\n"
    ),
    b'{"a": {"$in": ["x", 1]}, "$or": [{"b": {"$ne": true}}, {"c": {"$exists": false}}], "d": {"$gte": 1.5}}',
    b'{"transformationType": "all", "preprocess": {"language": "de", "extraWords": []}, "limits": {"deadlineMs": 1}}',
    b'\x01{"rewrite": "Is the dog ill?", "sub_queries": ["a b", "c d"], "hyde": "x", "keywords": ["a"]}',
    b'{"v":1,"rewrite":"a","sub_queries":["b"],"notes":[["a","b"]]}',
)
"""What well-formed inputs look like, to begin with."""
_STATUS: Final = re.compile(r"#(\d+)\s+(\w+)\s+cov: (\d+) ft: (\d+) corp: (\d+)")
_RATE: Final = re.compile(r"stat::average_exec_per_sec:\s+(\d+)")
_STARTED: Final = "INFO: Seed: "
_COUNT: Final = re.compile(r"stat::number_of_executed_units:\s+(\d+)")


@dataclass(frozen=True)
class Run:
    """What came of fuzzing one *target*: how often it was run, how much of it was reached, and what broke."""

    target: str
    executions: int
    rate: int
    coverage_before: int
    coverage: int
    inputs: int
    finding: str


def fuzz(target: str, seconds: int) -> Run:
    """Fuzz *target* for so many *seconds*; raises `RuntimeError` where the fuzzer does not start."""
    KEPT.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "tests.robustness.fuzz.running", target, str(seconds)]
    done = subprocess.run(command, capture_output=True, check=False, timeout=10 * seconds + 300)
    said = done.stderr.decode("utf-8", "replace") + done.stdout.decode("utf-8", "replace")
    states = [tuple(map(int, (it[0], *it[2:]))) for it in _STATUS.findall(said)]
    inited = next((int(it[2]) for it in _STATUS.findall(said) if it[1] == "INITED"), 0)
    last = states[-1] if states else (0, 0, 0, 0)
    count, rate = _COUNT.search(said), _RATE.search(said)
    if _STARTED not in said:
        # What broke then is no target, and an account of it no finding.
        raise RuntimeError(
            f"the fuzzer did not start for {target}: {(said.strip().splitlines() or ['no word'])[-1]}"
        )
    finding = ""
    if done.returncode:
        (KEPT / f"{target}.txt").write_text(said, encoding="utf-8")
        lines = [
            it
            for it in said.splitlines()
            if re.match(r"\S*(?:Error|Exception|Broken|Invalid)\S*:? ?|==\d+== ERROR", it)
        ]
        finding = (lines or said.splitlines()[-1:] or ["ended without a word"])[0][:200]
    run = Run(
        target,
        int(count[1]) if count else last[0],
        int(rate[1]) if rate else 0,
        inited,
        last[1],
        last[3],
        finding,
    )
    print(run, flush=True)
    return run


def fuzz_here(target: str, seconds: int) -> None:
    """Fuzz *target* in this process, which the fuzzer ends."""
    import atheris

    with atheris.instrument_imports(include=["qtmiddleware"]):
        from tests.robustness.fuzz.targets import TARGETS

    folder = KEPT / target
    folder.mkdir(parents=True, exist_ok=True)
    for data in (
        *(hostile.text.encode("utf-8", "surrogatepass")[:MOST_BYTES] for hostile in SHORT),
        *SHAPES,
    ):
        (folder / f"seed-{sha256(data).hexdigest()[:16]}").write_bytes(data)
    options = [
        sys.argv[0],
        f"-max_total_time={seconds}",
        f"-max_len={MOST_BYTES}",
        "-timeout=20",
        "-rss_limit_mb=2048",
        "-print_final_stats=1",
        f"-artifact_prefix={KEPT}/{target}-",
        str(folder),
    ]
    atheris.Setup(options, TARGETS[target])
    atheris.Fuzz()


if __name__ == "__main__":
    fuzz_here(sys.argv[1], int(sys.argv[2]))
