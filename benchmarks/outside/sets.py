"""The data sets of the check."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.outside.collection import Collection
from benchmarks.outside.converters import cranfield, faquad, jaquad, morehopqa, mtragun, stackfaq
from benchmarks.outside.sources import KEPT, Repository, Sources

RECORDINGS: Final = Path(__file__).resolve().parent / "recordings"


@dataclass(frozen=True)
class OutsideSet:
    """One data set: what it is, what it is made from and how, and whose recorded replies answer its questions."""

    name: str
    about: str
    convert: Callable[[Sources], Collection]
    repositories: tuple[Repository, ...]
    recorded_for: str = ""

    @property
    def folder(self) -> Path:
        """Where it lies once it was converted."""
        return KEPT / self.name

    @property
    def recording(self) -> Path | None:
        """The recorded replies, where there are some."""
        file = RECORDINGS / f"{self.recorded_for or self.name}.jsonl"
        return file if file.is_file() else None


_STACKFAQ: Final = (stackfaq.REPOSITORY,)
_ALL: Final = (
    OutsideSet("stackfaq", "FAQ: needs in users' words, answers under the question of their thread",
               stackfaq.with_titles, _STACKFAQ, "stackfaq_answers"),
    OutsideSet("stackfaq_answers", "the same, the answers alone", stackfaq.answers_alone, _STACKFAQ),
    OutsideSet("cranfield", "scientific abstracts, questions of researchers",
               cranfield.abstracts, (cranfield.REPOSITORY,)),
    OutsideSet("mtragun", "conversations on four domains", mtragun.last_turns, (mtragun.REPOSITORY,)),
    OutsideSet("morehopqa", "two-hop questions on Wikipedia",
               morehopqa.two_hops, (morehopqa.REPOSITORY, morehopqa.DISTRACTORS)),
    OutsideSet("faquad", "Portuguese, higher education", faquad.portuguese, (faquad.REPOSITORY,)),
    OutsideSet("jaquad", "Japanese, Wikipedia", jaquad.japanese, (jaquad.REPOSITORY,)),
)  # fmt: skip
SETS: Final = {one.name: one for one in _ALL}
