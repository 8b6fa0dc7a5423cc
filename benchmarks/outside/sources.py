"""The public repositories that the data sets are made from, and the layout they are written in."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

KEPT: Final = Path(".tmp/outside")
"""Sources, converted sets, indexes and vectors."""


@dataclass(frozen=True)
class Repository:
    """A repository on GitHub by its owner and name, at one commit, and under which licence its data stand."""

    name: str
    commit: str
    licence: str

    @property
    def address(self) -> str:
        """Where it is fetched from."""
        return f"https://github.com/{self.name}"

    @property
    def folder(self) -> str:
        """What its copy on this disk is called."""
        return self.name.replace("/", "+")


class Sources:
    """Files of repositories: out of bare git directories below *folder* where they hold the commit, else fetched."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._found: dict[Repository, Path] = {}

    def read(self, repository: Repository, path: str) -> str:
        """The text of one file; raises `SystemExit` where the repository or the file cannot be had."""
        if repository not in self._found:
            self._found[repository] = self._given(repository) or _fetched(repository)
        return _git(self._found[repository], "show", f"{repository.commit}:{path}")

    def _given(self, repository: Repository) -> Path | None:
        if self._folder is None:
            return None
        for copy in self._folder.rglob(repository.folder):
            for head in copy.rglob("HEAD"):
                if (head.parent / "objects").is_dir() and _holds(head.parent, repository):
                    return head.parent
        return None


def _fetched(repository: Repository) -> Path:
    """A copy that has the commit alone, and of its files those that were asked for."""
    folder = KEPT / "sources" / repository.folder
    if not _holds(folder, repository):
        print(f"fetching {repository.address}", flush=True)
        folder.mkdir(parents=True, exist_ok=True)
        _git(folder, "init", "--quiet", "--bare")
        _git(folder, "config", "remote.origin.url", repository.address)
        _git(
            folder,
            "fetch",
            "--quiet",
            "--depth=1",
            "--filter=blob:none",
            "origin",
            repository.commit,
        )
    return folder


def _holds(folder: Path, repository: Repository) -> bool:
    return (folder / "HEAD").is_file() and _run(
        folder, ["cat-file", "-e", repository.commit]
    ).returncode == 0


def _git(folder: Path, *arguments: str) -> str:
    done = _run(folder, arguments)
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()
        raise SystemExit(f"git {' '.join(arguments)} failed in {folder}: {said}")
    return done.stdout.decode("utf-8")


def _run(folder: Path, arguments: Iterable[str]) -> subprocess.CompletedProcess[bytes]:
    # Nobody is asked for a password: a repository that is gone answers as one that is private.
    environment = {**os.environ, "GIT_TERMINAL_PROMPT": "0"}
    return subprocess.run(
        ["git", f"--git-dir={folder}", *arguments],
        capture_output=True,
        check=False,
        env=environment,
    )


@dataclass
class Collection:
    """Passages, each with title and text, questions, each with text and history, and grades, all by their ids."""

    passages: dict[str, tuple[str, str]] = field(default_factory=dict)
    questions: dict[str, tuple[str, Sequence[Mapping[str, str]]]] = field(default_factory=dict)
    qrels: dict[str, dict[str, int]] = field(default_factory=dict)

    def ask(
        self,
        id_: str,
        text: str,
        grades: Mapping[str, int],
        history: Sequence[Mapping[str, str]] = (),
    ) -> None:
        """Add one question with its judgements."""
        self.questions[id_] = (text, history)
        self.qrels[id_] = dict(grades)

    def write(self, folder: Path) -> None:
        """Into *folder*, over what an earlier run left there."""
        (folder / "qrels").mkdir(parents=True, exist_ok=True)
        passages = (
            {"_id": id_, "title": title, "text": text}
            for id_, (title, text) in self.passages.items()
        )
        _write_lines(folder / "corpus.jsonl", map(_json, passages))
        _write_lines(folder / "queries.jsonl", map(_json, self._records()))
        judged = (
            f"{one}\t{other}\t{grade}"
            for one, grades in self.qrels.items()
            for other, grade in grades.items()
        )
        _write_lines(folder / "qrels" / "test.tsv", ["query-id\tcorpus-id\tscore", *judged])

    def _records(self) -> Iterable[dict[str, Any]]:
        for id_, (text, history) in self.questions.items():
            yield {
                "_id": id_,
                "text": text,
                **({"metadata": {"history": history}} if history else {}),
            }


def clean(text: str) -> str:
    """*text* with one space between words and no empty lines."""
    return re.sub(r"[ \t\u00a0]+", " ", re.sub(r"\s*\n\s*", "\n", text)).strip()


def flat(text: str) -> str:
    """*text* on one line."""
    return " ".join(text.split())


def _json(record: Mapping[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False)


def _write_lines(file: Path, lines: Iterable[str]) -> None:
    with file.open("w", encoding="utf-8", newline="\n") as out:
        out.writelines(f"{line}\n" for line in lines)
