"""The data sets of the check, and how each is made from the files of its repositories."""

from __future__ import annotations

import html
import json
import random
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.outside.sources import KEPT, Collection, Repository, Sources, clean, flat

# The layout of SQuAD: articles with paragraphs, and questions that were written on each of them.


def paragraphs(articles: Iterable[Mapping[str, Any]]) -> Collection:
    """Each paragraph a passage, the one a question was written on relevant; questions of a known id are left out."""
    made = Collection()
    ids: dict[str, str] = {}
    for article in articles:
        title = clean(article.get("title", ""))
        for paragraph in article["paragraphs"]:
            text = clean(paragraph["context"])
            id_ = ids.setdefault(text, f"p{len(ids)}")
            made.passages.setdefault(id_, (title, text))
            for asked in paragraph["qas"]:
                if asked["question"].strip() and str(asked["id"]) not in made.questions:
                    made.ask(str(asked["id"]), clean(asked["question"]), {id_: 1})
    return made


# FaQuAD: Portuguese questions on Brazilian higher education (Sayama et al. 2019).

FAQUAD: Final = Repository(
    "liafacom/faquad", "6ad978f20672bb41625b3b71fbe4a88b893d0a86", "CC BY 4.0"
)


def portuguese(sources: Sources) -> Collection:
    """All its questions."""
    articles = json.loads(sources.read(FAQUAD, "data/dataset.json"))["data"]
    return paragraphs(
        {**article, "title": article["title"].replace("_", " ")} for article in articles
    )


# JaQuAD: Japanese questions on paragraphs of the Japanese Wikipedia (So et al. 2022).

JAQUAD: Final = Repository(
    "SkelterLabsInc/JaQuAD", "23f5d72cc273c49b35e2d9efe0f51757aa1770bd", "CC BY-SA 3.0"
)
JAQUAD_FILES: Final = tuple(f"data/dev/jaquad_dev_{number:04}.json" for number in range(4))


def japanese(sources: Sources) -> Collection:
    """The questions of its development part."""
    files = [json.loads(sources.read(JAQUAD, file))["data"] for file in JAQUAD_FILES]
    return paragraphs(article for articles in files for article in articles)


# Cranfield 1400: abstracts of aerodynamics of the 1960s with the questions of researchers (Cleverdon 1967).

CRANFIELD: Final = Repository(
    "oussbenk/cranfield-trec-dataset",
    "1208e6edfb6cb2527b2c44398d3d8fefd3249144",
    "none named; a research collection that has always been distributed freely",
)


def abstracts(sources: Sources) -> Collection:
    """Every abstract that holds something a passage; every grade above 0 is relevant."""
    made = Collection()
    for document in re.findall(
        r"<doc>(.*?)</doc>", sources.read(CRANFIELD, "cran.all.1400.xml"), re.DOTALL
    ):
        title, text = _tagged(document, "title"), _tagged(document, "text")
        # The abstract begins with its title once more.
        text = text.removeprefix(title).strip()
        if title or text:
            made.passages[_tagged(document, "docno")] = (title, text)
    grades: dict[str, dict[str, int]] = {}
    for line in sources.read(CRANFIELD, "cranqrel.trec.txt").splitlines():
        question, _, document, grade = line.split()
        if int(grade) > 0 and document in made.passages:
            grades.setdefault(question, {})[document] = 1
    topics = re.findall(r"<top>(.*?)</top>", sources.read(CRANFIELD, "cran.qry.xml"), re.DOTALL)
    # The judgements number the questions by their place, not by the number that stands beside them.
    for place, topic in enumerate(topics, 1):
        if str(place) in grades:
            made.ask(str(place), _tagged(topic, "title"), grades[str(place)])
    return made


def _tagged(within: str, tag: str) -> str:
    found = re.search(f"<{tag}>(.*?)</{tag}>", within, re.DOTALL)
    return flat(html.unescape(found[1])) if found else ""


# MoreHopQA: two-hop questions that people verified, over paragraphs of Wikipedia (Schnitzler et al. 2024).

MOREHOPQA: Final = Repository(
    "Alab-NII/morehopqa", "27c72b1a220255093266a61f9e70af6ae981dc0b", "CC BY 4.0; code Apache-2.0"
)
WIKI_PARAGRAPHS: Final = Repository(
    "OSU-NLP-Group/HippoRAG",
    "c617143f01477243992a63b2e2151cc003dd3b21",
    "MIT; the texts are Wikipedia's, CC BY-SA",
)
MOST_PARAGRAPHS: Final = 5_700
SEED: Final = 7
KNOWN_QUESTIONS: Final = frozenset(
    {
        "5ae63dad55429929b0807afe_7",
        "5a877e5d5542993e715abf7d_10",
        "5ae5736e5542990ba0bbb2b3_1",
        "5ae5736e5542990ba0bbb2b3_2",
        "5ae5736e5542990ba0bbb2b3_5",
        "5a7997a2554299029c4b5f59_3",
    }
)
"""They ask what a question of hotpotqa_small asks, a set the defaults were looked at with."""


def two_hops(sources: Sources) -> Collection:
    """Its "previous question", the natural one of two hops, once each; both supporting paragraphs are relevant.

    Beside these stand `MOST_PARAGRAPHS` paragraphs of 2WikiMultihopQA, none with the title of a supporting
    one.
    """
    made = Collection()
    ids: dict[tuple[str, str], str] = {}
    asked: set[str] = set()
    for row in json.loads(
        sources.read(MOREHOPQA, "datasets/files/morehopqa_final_150samples.json")
    ):
        text = flat(row["previous_question"])
        if row["_id"] in KNOWN_QUESTIONS or text.lower() in asked:
            continue
        asked.add(text.lower())
        supporting = [(title, flat("".join(sentences))) for title, sentences in row["context"]]
        grades = {ids.setdefault(passage, f"g{len(ids)}"): 1 for passage in supporting}
        made.ask(row["_id"], text, grades)
    made.passages = {id_: passage for passage, id_ in ids.items()}
    titles = {title for title, _ in ids}
    paragraphs = json.loads(
        sources.read(WIKI_PARAGRAPHS, "reproduce/dataset/2wikimultihopqa_corpus.json")
    )
    others = [one for one in paragraphs if one["title"] not in titles]
    random.Random(SEED).shuffle(others)
    made.passages |= {
        f"w{n}": (one["title"], flat(one["text"])) for n, one in enumerate(others[:MOST_PARAGRAPHS])
    }
    return made


# MTRAG-UN: conversations of people with a retrieval assistant (Rosenthal et al. 2026, arXiv 2602.23184).

MTRAGUN: Final = Repository(
    "IBM/mt-rag-benchmark", "cc5b1d481b391181b89f7ced860308482e785463", "Apache-2.0"
)
MTRAGUN_TASKS: Final = "mtragun-human/generation_tasks/reference.jsonl"
MTRAGUN_OTHERS: Final = "mtrag-human/evaluations/reference_subset_with_human_evaluations.json"
MTRAGUN_QRELS: Final = tuple(
    f"mtragun-human/retrieval_tasks/qrels/{part}.tsv"
    for part in ("clapnq", "cloud", "fiqa", "govt")
)
ROLES: Final = {"user": "user", "agent": "assistant"}


def last_turns(sources: Sources) -> Collection:
    """The last turn of the user is the question, the turns before it are its history.

    The passages are those that any task names as its reference, and those of the subset that people
    evaluated; of all four domains in one. The full corpora are much larger, and harder.
    """
    made = Collection()
    tasks = [json.loads(line) for line in sources.read(MTRAGUN, MTRAGUN_TASKS).splitlines()]
    for task in tasks:
        for passage in task["contexts"]:
            made.passages[passage["document_id"]] = (
                clean(passage.get("title") or ""),
                clean(passage["text"]),
            )
    for passage in json.loads(sources.read(MTRAGUN, MTRAGUN_OTHERS))["documents"]:
        made.passages.setdefault(passage["document_id"], ("", clean(passage["text"])))
    grades: dict[str, dict[str, int]] = {}
    for file in MTRAGUN_QRELS:
        for line in sources.read(MTRAGUN, file).splitlines()[1:]:
            question, passage_id, grade = line.split("\t")
            if passage_id in made.passages and int(grade) > 0:
                grades.setdefault(question, {})[passage_id] = int(grade)
    for task in tasks:
        if task["task_id"] in grades:
            *before, last = task["input"]
            history = [
                {"role": ROLES[turn["speaker"]], "content": clean(turn["text"])} for turn in before
            ]
            made.ask(task["task_id"], clean(last["text"]), grades[task["task_id"]], history)
    return made


# StackFAQ: needs of users in their own words, and the answers of StackExchange threads (Karan and Snajder 2018).

STACKFAQ: Final = Repository(
    "ML-Recipes/BERT-FAQ",
    "3c184030c1819b462e29f665465ab4968657440e",
    "MIT; the texts are StackExchange's, CC BY-SA 3.0",
)


def with_titles(sources: Sources) -> Collection:
    """Each answer a passage with the question of its thread as title; all answers of the thread are relevant."""
    made = Collection()
    pairs = json.loads(sources.read(STACKFAQ, "data/StackFAQ/stackExchange-FAQ.json"))["root"][
        "qapair"
    ]
    for thread, pair in enumerate(pairs):
        answers = _answers(pair["answer"])
        ids = [f"t{thread}a{number}" for number in range(len(answers))]
        for id_, answer in zip(ids, answers, strict=True):
            made.passages[id_] = (clean(pair["question"]), answer)
        for number, need in enumerate(_listed(pair["rephr"])):
            if isinstance(need, str) and len(need.strip()) > 2 and answers:
                made.ask(f"t{thread}q{number}", clean(need), dict.fromkeys(ids, 1))
    return made


def answers_alone(sources: Sources) -> Collection:
    """The same without titles, which is the harder form."""
    made = with_titles(sources)
    made.passages = {id_: ("", text) for id_, (_, text) in made.passages.items()}
    return made


def _answers(found: Any) -> list[str]:
    listed = _listed(found)
    # A thread with one answer sometimes has a list of its letters there.
    if listed and all(len(one) == 1 for one in listed):
        listed = ["".join(listed)]
    return [clean(one) for one in listed if isinstance(one, str) and one.strip()]


def _listed(found: Any) -> list[Any]:
    return found if isinstance(found, list) else [found]


# The data sets

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


_STACKFAQ: Final = (STACKFAQ,)
_ALL: Final = (
    OutsideSet("stackfaq", "FAQ: needs in users' words, answers under the question of their thread",
               with_titles, _STACKFAQ, "stackfaq_answers"),
    OutsideSet("stackfaq_answers", "the same, the answers alone", answers_alone, _STACKFAQ),
    OutsideSet("cranfield", "scientific abstracts, questions of researchers",
               abstracts, (CRANFIELD,)),
    OutsideSet("mtragun", "conversations on four domains", last_turns, (MTRAGUN,)),
    OutsideSet("morehopqa", "two-hop questions on Wikipedia",
               two_hops, (MOREHOPQA, WIKI_PARAGRAPHS)),
    OutsideSet("faquad", "Portuguese, higher education", portuguese, (FAQUAD,)),
    OutsideSet("jaquad", "Japanese, Wikipedia", japanese, (JAQUAD,)),
)  # fmt: skip
SETS: Final = {one.name: one for one in _ALL}
