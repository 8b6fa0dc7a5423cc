"""MoreHopQA: two-hop questions that people verified, over paragraphs of Wikipedia (Schnitzler et al. 2024)."""

from __future__ import annotations

import json
import random
from typing import Final

from benchmarks.outside.collection import Collection, flat
from benchmarks.outside.sources import Repository, Sources

REPOSITORY: Final = Repository(
    "Alab-NII/morehopqa", "27c72b1a220255093266a61f9e70af6ae981dc0b", "CC BY 4.0; code Apache-2.0"
)
DISTRACTORS: Final = Repository(
    "OSU-NLP-Group/HippoRAG",
    "c617143f01477243992a63b2e2151cc003dd3b21",
    "MIT; the texts are Wikipedia's, CC BY-SA",
)
OTHERS: Final = 5_700
SEED: Final = 7
KNOWN: Final = frozenset(
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

    Beside these stand `OTHERS` paragraphs of 2WikiMultihopQA, none with the title of a supporting
    one.
    """
    made = Collection()
    ids: dict[tuple[str, str], str] = {}
    asked: set[str] = set()
    for row in json.loads(
        sources.read(REPOSITORY, "datasets/files/morehopqa_final_150samples.json")
    ):
        text = flat(row["previous_question"])
        if row["_id"] in KNOWN or text.lower() in asked:
            continue
        asked.add(text.lower())
        supporting = [(title, flat("".join(sentences))) for title, sentences in row["context"]]
        grades = {ids.setdefault(passage, f"g{len(ids)}"): 1 for passage in supporting}
        made.ask(row["_id"], text, grades)
    made.passages = {id_: passage for passage, id_ in ids.items()}
    titles = {title for title, _ in ids}
    paragraphs = json.loads(
        sources.read(DISTRACTORS, "reproduce/dataset/2wikimultihopqa_corpus.json")
    )
    others = [one for one in paragraphs if one["title"] not in titles]
    random.Random(SEED).shuffle(others)
    made.passages |= {
        f"w{n}": (one["title"], flat(one["text"])) for n, one in enumerate(others[:OTHERS])
    }
    return made
