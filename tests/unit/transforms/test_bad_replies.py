"""What comes out of replies as models really write them: one row a reply."""

from __future__ import annotations

import pytest

from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import ModelError
from qtmiddleware.protocols import Reply
from qtmiddleware.transforms import build_prompts, parse_transformation
from qtmiddleware.types import Transformation

QUERY = "What is Nike's strategy?"
NOTHING: dict[str, object] = {}

# Transformation, reply, and what is searched because of it; one word where the reply is refused
# with that reason.
REPLIES: list[tuple[str, str, dict[str, object] | str]] = [
    ("rewrite", '{"rewrite": "a b c"}', {"rewrite": "a b c"}),
    ("rewrite", '```json\n{"rewrite": "a b c"}\n```', {"rewrite": "a b c"}),
    ("rewrite", 'Sure! Here you go:\n{"rewrite": "a b c"}\nHope this helps!', {"rewrite": "a b c"}),
    ("rewrite", '{"rewrittenQuery": "a b c", "reasoning": "because"}', {"rewrite": "a b c"}),
    ("rewrite", "{'rewritten_query': 'Nike's growth plan',}", {"rewrite": "Nike's growth plan"}),
    (
        "rewrite",
        '{"rewrite": "What does "just do it" mean?"}',
        {"rewrite": 'What does "just do it" mean?'},
    ),
    ("rewrite", '{"rewrite": ["a b c", "d e f"]}', {"rewrite": "a b c"}),
    ("rewrite", '{"rewrite": {"query": "a b c"}}', {"rewrite": "a b c"}),
    ("rewrite", '{"rewrite": null}', "empty"),
    ("rewrite", '{"rewrite": ""}', "empty"),
    ("rewrite", '{"rewrite": 42}', "unparsable"),
    ("rewrite", '{"result": {"rewrite": "a b c"}}', {"rewrite": "a b c"}),
    ("rewrite", '{"query": "a b c"}', {"rewrite": "a b c"}),
    ("rewrite", '{"consulta": "a b c"}', {"rewrite": "a b c"}),
    ("rewrite", '["a b c"]', {"rewrite": "a b c"}),
    ("rewrite", '"a b c"', {"rewrite": "a b c"}),
    ("rewrite", '"{\\"rewrite\\": \\"a b c\\"}"', {"rewrite": "a b c"}),
    ("rewrite", '<think>hm {"rewrite": "draft"}</think>{"rewrite": "a b c"}', {"rewrite": "a b c"}),
    ("rewrite", '<think>hm {"rewrite": "draft"}', "truncated"),
    ("rewrite", "hm so\n</think>\na b c", {"rewrite": "a b c"}),
    ("rewrite", "Rewritten query: a b c", {"rewrite": "a b c"}),
    ("rewrite", "**Rewritten Query:** a b c", {"rewrite": "a b c"}),
    (
        "rewrite",
        "### Rewritten Query\n\na b c\n\n### Explanation\nThis makes it better.",
        {"rewrite": "a b c"},
    ),
    (
        "rewrite",
        'Here is the rewritten query:\n\n"a b c"\n\nThis version adds detail.',
        {"rewrite": "a b c"},
    ),
    ("rewrite", "Sure! Here is the rewritten query: a b c", {"rewrite": "a b c"}),
    ("rewrite", "1. a b c\n2. d e f", {"rewrite": "a b c"}),
    ("rewrite", "- a b c", {"rewrite": "a b c"}),
    ("rewrite", "<rewrite>a b c</rewrite>", {"rewrite": "a b c"}),
    (
        "rewrite",
        "The user wants to know about Nike.\n\nWhat are the strategies of Nike, Inc.?",
        {"rewrite": "What are the strategies of Nike, Inc.?"},
    ),
    ("rewrite", "I'm sorry, but I can't help with that.", "refused"),
    (
        "rewrite",
        "I can't assist with that request. If you have other questions, feel free to ask.",
        "refused",
    ),
    ("rewrite", '{"rewrite": "I\'m sorry, but I cannot assist with that."}', "refused"),
    ("rewrite", '{"refusal": "no", "rewrite": null}', "refused"),
    ("rewrite", "As an AI language model, I don't have opinions.", "refused"),
    ("rewrite", "Je suis désolé, mais je ne peux pas répondre.", "refused"),
    ("rewrite", "抱歉，我无法回答这个问题。", "refused"),
    ("rewrite", "申し訳ありませんが、お答えできません。", "refused"),
    ("rewrite", "죄송하지만 도와드릴 수 없습니다.", "refused"),
    ("rewrite", "Lo siento, no puedo ayudar.", "refused"),
    ("rewrite", "Es tut mir leid, dabei kann ich nicht helfen.", "refused"),
    ("rewrite", "Извините, я не могу помочь.", "refused"),
    ("rewrite", "عذراً، لا أستطيع المساعدة", "refused"),
    ("rewrite", "The query is already clear.", "empty"),
    ("rewrite", "No changes needed.", "empty"),
    ("rewrite", "", "empty"),
    ("rewrite", "   \n\t", "empty"),
    ("rewrite", "{}", "empty"),
    ("rewrite", "null", "empty"),
    ("rewrite", "[]", "empty"),
    ("rewrite", "N/A", "empty"),
    ("rewrite", "...", "empty"),
    ("rewrite", "What is Nike's strategy?", {}),
    ("rewrite", "what is nike's  strategy", {}),
    ("rewrite", '{"rewrite": "What is Nike\'s strategy?"}', {}),
    ("rewrite", "<html><body><h1>502 Bad Gateway</h1></body></html>", "unparsable"),
    ("rewrite", '{"error": {"message": "rate limited", "code": 429}}', "unparsable"),
    ("rewrite", "**ERROR**: model down", "unparsable"),
    ("rewrite", '{"rewrite": "a", "rewrite": "b"}', {"rewrite": "b"}),
    ("rewrite", '{"rewrite": "a b \ud800 c"}', {"rewrite": "a b c"}),
    ("rewrite", '{"rewrite": "a\u200bb\u202e c\\u0000"}', {"rewrite": "ab c"}),
    (
        "rewrite",
        '{"type":"object","properties":{"rewrite":{"type":"string","description":"the rewritten query, one sentence"}}}',
        "empty",
    ),
    ("rewrite", '{"rewrite": "What are Nike', "truncated"),
    (
        "rewrite",
        '{"name": "rewrite", "arguments": "{\\"rewrite\\": \\"a b c\\"}"}',
        {"rewrite": "a b c"},
    ),
    (
        "rewrite",
        "You rewrite a user's query so that a semantic search finds the passages that answer it.",
        "unparsable",
    ),
    (
        "rewrite",
        "Original query: What is Nike's strategy?\nRewritten query: a b c",
        {"rewrite": "a b c"},
    ),
    ("rewrite", "改写后的查询：耐克的战略", {"rewrite": "耐克的战略"}),
    ("rewrite", "Requête réécrite : la stratégie de Nike", {"rewrite": "la stratégie de Nike"}),
    ("decompose", '{"sub_queries": ["a b", "c d"]}', {"sub_queries": ("a b", "c d")}),
    (
        "decompose",
        '{"subQueries": [{"query": "a b", "reason": "x"}, {"query": "c d"}]}',
        {"sub_queries": ("a b", "c d")},
    ),
    ("decompose", '{"sub_queries": {"1": "a b", "2": "c d"}}', {"sub_queries": ("a b", "c d")}),
    ("decompose", '[{"question": "a b"}, {"question": "c d"}]', {"sub_queries": ("a b", "c d")}),
    ("decompose", '{"sub_queries": ["a b", "c d", "e f', {"sub_queries": ("a b", "c d")}),
    ("decompose", "1. a b\n2. c d\n", {"sub_queries": ("a b", "c d")}),
    (
        "decompose",
        'Here are the sub-queries:\n\n1. **a b**\n2. "c d"\n\nLet me know if you need more!',
        {"sub_queries": ("a b", "c d")},
    ),
    ("decompose", "Sub-query 1: a b\nSub-query 2: c d", {"sub_queries": ("a b", "c d")}),
    ("decompose", "1. a b? 2. c d? 3. e f?", {"sub_queries": ("a b?", "c d?", "e f?")}),
    ("decompose", '{"sub_queries": []}', NOTHING),
    ("decompose", '{"sub_queries": ["What is Nike\'s strategy?"]}', NOTHING),
    (
        "decompose",
        '{"sub_queries": ["Who founded Nike?", "Where was that person born?", "When did #1 die?", "What did [answer of 1] study?", "When was it released?"]}',
        {"sub_queries": ("Who founded Nike?",)},
    ),
    ("decompose", '{"sub_query_1": "a b", "sub_query_2": "c d"}', {"sub_queries": ("a b", "c d")}),
    (
        "decompose",
        '{"sub_queries": ["a","b","c","d","e","f"]}',
        {"sub_queries": ("a", "b", "c", "d")},
    ),
    ("decompose", '{"query": "a b"}\n{"query": "c d"}', {"sub_queries": ("a b", "c d")}),
    ("decompose", '{"sub_queries": "1. a b\\n2. c d"}', {"sub_queries": ("a b", "c d")}),
    (
        "multi_query",
        '["Here are..","a","A ","a","","What is Nike\'s strategy?","b","c","d"]',
        {"paraphrases": ("a", "b", "c")},
    ),
    (
        "multi_query",
        "Here are..\na\nA \na\n\nWhat is Nike's strategy?\nb\nc\nd",
        {"paraphrases": ("a", "b", "c")},
    ),
    ("multi_query", '{"queries": ["a", "b"]}', {"paraphrases": ("a", "b")}),
    ("multi_query", "Here are 3 versions:\n- a\n- b\n- c", {"paraphrases": ("a", "b", "c")}),
    ("multi_query", "a\n\nb\n\nc", {"paraphrases": ("a", "b", "c")}),
    (
        "hyde",
        "Nike pursues growth. It sells shoes.\n\nIt also sells balls.",
        {"hyde": "Nike pursues growth. It sells shoes. It also sells balls."},
    ),
    ("hyde", "Passage: Nike pursues growth.", {"hyde": "Nike pursues growth."}),
    ("hyde", '{"hyde": "Nike pursues growth. It sells sho', {"hyde": "Nike pursues growth."}),
    ("hyde", "Here is a passage:\n\nNike pursues growth.", {"hyde": "Nike pursues growth."}),
    (
        "keywords",
        '{"keywords": ["nike", "strategy", "NIKE", "brand"]}',
        {"keywords": ("nike", "strategy", "brand")},
    ),
    ("keywords", "nike, strategy, brand", {"keywords": ("nike", "strategy", "brand")}),
    ("keywords", "Keywords: nike, strategy, brand", {"keywords": ("nike", "strategy", "brand")}),
    ("keywords", "- nike\n- strategy", {"keywords": ("nike", "strategy")}),
    (
        "combined",
        '{"rewrite": "a b c", "step_back": "d e", "sub_queries": ["f g", "h i"], "hyde": "Nike sells. It gro',
        {
            "rewrite": "a b c",
            "step_back": "d e",
            "sub_queries": ("f g", "h i"),
            "hyde": "Nike sells.",
        },
    ),
    (
        "combined",
        "**Rewrite:** a b c\n**Step-back question:** d e\n**Sub-queries:**\n1. f g\n2. h i\n**Hypothetical passage:**\nNike sells.\nMuch.",
        {
            "rewrite": "a b c",
            "step_back": "d e",
            "sub_queries": ("f g", "h i"),
            "hyde": "Nike sells. Much.",
        },
    ),
    (
        "combined",
        '{"rewrittenQuery": "a b c", "stepBackQuestion": "d e", "subQueries": ["f g"], "reasoning": "zzz"}',
        {"rewrite": "a b c", "step_back": "d e", "sub_queries": ("f g",)},
    ),
    (
        "combined",
        "rewrite: a b c\nstep_back: d e\nsub_queries:\n- f g\n- h i\nhyde: Nike sells.",
        {
            "rewrite": "a b c",
            "step_back": "d e",
            "sub_queries": ("f g", "h i"),
            "hyde": "Nike sells.",
        },
    ),
    (
        "combined",
        "<rewrite>a b c</rewrite><step_back>d e</step_back>",
        {"rewrite": "a b c", "step_back": "d e"},
    ),
    (
        "combined",
        '{"rewrite": "a b c"}\n{"step_back": "d e"}',
        {"rewrite": "a b c", "step_back": "d e"},
    ),
    ("combined", "1. a b\n2. c d", {"sub_queries": ("a b", "c d")}),
    ("combined", "a b c", {"rewrite": "a b c"}),
    ("rewrite", "I cannot fulfill this request.", "refused"),
    ("rewrite", "Sorry, I can't rewrite that.", "refused"),
    (
        "stepback",
        "Step-back question: What drives the results of sportswear makers?",
        {"step_back": "What drives the results of sportswear makers?"},
    ),
    (
        "stepback",
        '{"stepBackQuery": "What drives sportswear makers?"}',
        {"step_back": "What drives sportswear makers?"},
    ),
    (
        "stepback",
        '{"step_back_question": {"text": "What drives sportswear makers?"}}',
        {"step_back": "What drives sportswear makers?"},
    ),
    ("decompose", "Je ne peux pas répondre à cette question.", "refused"),
    (
        "decompose",
        "1) What is sold?\n2) Who buys it?",
        {"sub_queries": ("What is sold?", "Who buys it?")},
    ),
    (
        "decompose",
        "* What is sold?\n* Who buys it?\n\nI hope this helps!",
        {"sub_queries": ("What is sold?", "Who buys it?")},
    ),
    (
        "decompose",
        '{"sub_queries": ["Sub-query 1: What is sold?", "2. Who buys it?"]}',
        {"sub_queries": ("What is sold?", "Who buys it?")},
    ),
    (
        "decompose",
        '```\n["What is sold?", "Who buys it?"]\n```',
        {"sub_queries": ("What is sold?", "Who buys it?")},
    ),
    (
        "decompose",
        '{"sub_queries": [null, 7, "What is sold?", ""]}',
        {"sub_queries": ("What is sold?",)},
    ),
    ("decompose", '{"sub_queries": ["[First sub-query]", "[Second sub-query]"]}', "unparsable"),
    (
        "multi_query",
        "Sure! Here are 3 paraphrases:\n1. a\n2. b\n3. c\n\nLet me know if you need more.",
        {"paraphrases": ("a", "b", "c")},
    ),
    ("multi_query", "Paraphrase 1: a\nParaphrase 2: b", {"paraphrases": ("a", "b")}),
    ("multi_query", '{"paraphrases": ["a", "b", "c", "d"]}', {"paraphrases": ("a", "b", "c")}),
    (
        "multi_query",
        "以下是三个版本：\n1、耐克战略\n2、耐克计划",
        {"paraphrases": ("耐克战略", "耐克计划")},
    ),
    ("hyde", "I'm sorry, but I don't have access to real-time data.", "refused"),
    ("hyde", '```json\n{"passage": "Nike sells shoes."}\n```', {"hyde": "Nike sells shoes."}),
    ("keywords", '{"keywords": "nike, brand; sport"}', {"keywords": ("nike", "brand", "sport")}),
    (
        "combined",
        '```json\n{"rewrite": "a b c",\n "step_back": "d e",\n "sub_queries": ["f g", "h',
        {"rewrite": "a b c", "step_back": "d e", "sub_queries": ("f g",)},
    ),
    (
        "combined",
        '{"queries": {"rewrite": "a b c", "step_back": "d e"}}',
        {"rewrite": "a b c", "step_back": "d e"},
    ),
    ("combined", "I can't help with that.", "refused"),
    (
        "combined",
        '{"rewrite": "a b c" "step_back": "d e"}',
        {"rewrite": "a b c", "step_back": "d e"},
    ),
    (
        "combined",
        '{"rewrite": "a b c",\n // the broader one\n "step_back": "d e",}',
        {"rewrite": "a b c", "step_back": "d e"},
    ),
    (
        "rewrite",
        "What are Nike's strategies? (This version is more specific.)",
        {"rewrite": "What are Nike's strategies?"},
    ),
    ("rewrite", '"rewrite": "What is sold?"', {"rewrite": "What is sold?"}),
    ("rewrite", "*What is sold?*", {"rewrite": "What is sold?"}),
    ("rewrite", "Rewritten:\n> What is sold?", {"rewrite": "What is sold?"}),
    ("rewrite", "rewrite:\n  What is sold?", {"rewrite": "What is sold?"}),
    ("rewrite", 'Okay, here\'s my attempt: "What is sold?"', {"rewrite": "What is sold?"}),
    ("rewrite", '{"rewrite": "What is sold?"}<|im_end|>', {"rewrite": "What is sold?"}),
    ("rewrite", "Umformulierte Frage: Was wird verkauft?", {"rewrite": "Was wird verkauft?"}),
    ("rewrite", "Internal Server Error", "empty"),
    ("decompose", "This is a simple question that does not need to be decomposed.", "empty"),
    (
        "decompose",
        "sub_queries:\n  - What is sold?\n  - Who buys it all?",
        {"sub_queries": ("What is sold?", "Who buys it all?")},
    ),
    (
        "keywords",
        '{"keywords": ["nike", {"term": "brand"}], "synonyms": ["plan"]}',
        {"keywords": ("nike", "brand", "plan")},
    ),
    ("hyde", "Here's a passage:\n\n**Strategy**\n\nNike sells.", {"hyde": "Strategy Nike sells."}),
    (
        "stepback",
        "**Step-back**: What drives Nike?\n\n**Reasoning**: broader.",
        {"step_back": "What drives Nike?"},
    ),
    ("keywords", '{"keywords": "I\'m sorry, but I can\'t help, really"}', "refused"),
    ("keywords", "I'm sorry", "refused"),
]


def searched(mode: str, text: str) -> dict[str, object] | str:
    prompt = build_prompts(Settings(transformation_type=mode), QUERY)[0]  # type: ignore[arg-type]
    try:
        found = parse_transformation(prompt, Reply(text))
    except ModelError as error:
        return error.reason
    fields = [name for name in Transformation.__dataclass_fields__ if name != "notes"]
    return {name: value for name in fields if (value := getattr(found, name))}


@pytest.mark.parametrize(
    ("mode", "text", "expected"), REPLIES, ids=[f"{i}-{row[0]}" for i, row in enumerate(REPLIES)]
)
def test_a_reply_gives_what_is_usable_in_it_and_nothing_else(
    mode: str, text: str, expected: dict[str, object] | str
) -> None:
    assert searched(mode, text) == expected
