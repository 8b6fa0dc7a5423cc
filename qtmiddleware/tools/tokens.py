"""Estimate the number of tokens in a text without a tokenizer, and cut texts to a token limit.

The estimate is meant as an upper bound for the tokenizers of current models, whatever the text. A
test compares it with one of these tokenizers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import ceil
from typing import Final

from qtmiddleware.preprocessing.sentences import compile_sentence_end_pattern

CUT: Final = " […]"
"""The mark at the end of a text that was cut."""
_LOOK_AHEAD: Final = 64
"""The number of characters to read after an offset to see whether a sentence ends there."""

# The commonest pairs of letters of English. Words of other pairs take more tokens.
_USUAL_PAIRS: Final = (
    "ac|ad|ag|ai|al|am|an|ar|as|at|ay|be|ca|ce|ch|ck|co|ct|da|de|di|do|ea|ec|ed|ee|el|em|en|er|es|"
    "et|ev|ex|fi|fo|ge|gh|ha|he|hi|ho|ic|id|ie|il|im|in|io|ir|is|it|ke|la|le|li|ll|lo|ly|ma|me|mi|"
    "mo|na|nc|nd|ne|ng|ni|no|ns|nt|of|ol|om|on|op|or|os|ot|ou|ow|pe|po|pr|qu|ra|re|ri|ro|rs|rt|ry|"
    "sa|se|sh|si|so|ss|st|su|ta|te|th|ti|to|tr|ts|un|ur|us|ut|ve|wa|we|wh|wi|wo"
)
_USUAL_PAIR: Final = re.compile(f"(?=(?:{_USUAL_PAIRS}))", re.IGNORECASE)

# The commonest Chinese characters and Korean syllables. Rarer ones take a token per byte.
_USUAL_SIGNS: Final = (
    "年数日的月用成名时件一请中据码不新文下分入人功上户为间号取回在页字有个作示出是失表除加败"
    "生信类置理本息行定改市期以修元方录区单位型法县存品前称注值输建能大例度始到面载点密动果图"
    "提发式国登错者认误接关重第地如设目开事可要代小选标明编求列网万最器所内体通务此商序化消否"
    "保使次机对量查部性和更后证题确格了于金公午円片空态管主天自我全今来正说意送容已结会段计源"
    "色時交系过电询符未程常条当情口合车实组版周址记二同业权其进试验料传述集多无员报他無服线这"
    "制将处高子道章手库三从支家长付秒路完象则现京转辑限力学外调项北工笑监任相微册联平增听解等"
    "得收安价藏命应看索资产串布原知级水击好物放亿经模之台州配画统共连海节退間比问至备你黑或与"
    "影话视读告美女山需复南必闭城近效利移总按排首記社西先然键额写签因别并异束心链指评整四断角"
    "이다하는로을를에가의기지수한스자서용리트력정시드어인일면성으은터해고습요제우장세보번소입"
    "호할도음그체록라문된아래과열원주사상미화여동재오게치개러나회간부름료되당들환경전능대작출"
    "비만식생색함공버명분와위적크든신값른니져글째메산진태목구결디야션거조운임턴내복류"
)

# No piece is long, so that a text can be cut between any two.
_PIECE: Final = re.compile(
    rf"""
    (?P<word>[A-Z]?[a-z]{{1,20}})
    |(?P<capitals>[A-Z]{{1,20}})
    |(?P<number>\x20?[0-9]{{1,20}})
    |(?P<space>\x20(?=\S))
    |(?P<indent>([\t\n\r\x20])\6{{3,20}})
    |(?P<blank>[\t-\r\x20]{{1,3}})
    |(?P<line>([!-/:-@\[-`{{-~])\9{{3,20}})
    |(?P<marks>[!-/:-@\[-`{{-~]{{1,3}})
    |(?P<usual>[α-ωά-ώа-яА-Яء-ي{_USUAL_SIGNS}]{{1,20}})
    |(?P<accents>[À-ÿא-תก-๛ぁ-ヿ]{{1,20}})
    |(?P<syllables>[\x80-\u07ffऀ-৿\u3000-〿！-～]{{1,20}})
    |(?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)

# The tokens of a piece, and of each of its characters.
_RATES: Final = {
    "capitals": (0.5, 0.65),
    "number": (0.9, 0.5),
    "space": (0.0, 0.0),  # a part of the token of the next word
    "indent": (1.0, 0.1),
    "blank": (0.5, 0.5),
    "line": (0.5, 0.26),
    "marks": (0.5, 0.6),
    "usual": (0.0, 1.25),
    "accents": (0.0, 1.6),
    "syllables": (0.0, 2.0),
}


def count_tokens(text: str) -> int:
    """Return an estimate of the number of tokens in *text*, too high rather than too low."""
    return ceil(sum(tokens for _, tokens in _measure_pieces(text)))


def _measure_pieces(text: str) -> Iterator[tuple[int, float]]:
    """Yield the end of each word, number or run of marks in *text*, and its tokens."""
    for match in _PIECE.finditer(text):
        group, piece = match.lastgroup or "other", match[0]
        length = len(piece)
        if group == "word":
            unusual = length - 1 - sum(1 for _ in _USUAL_PAIR.finditer(piece))
            tokens = max(1.0, 0.9 + 0.07 * length + 0.8 * unusual)
        elif group == "other":
            # Tokenizers fall back to one token per byte.
            tokens = len(piece.encode("utf-8", "surrogatepass"))
        else:
            fixed, each = _RATES[group]
            tokens = fixed + each * length
        yield match.end(), tokens


def cut_text(text: str, max_tokens: int) -> str:
    """Return *text*, cut at the end of a sentence if it has more than *max_tokens* tokens.

    A text that was cut ends with `CUT`. If no sentence ends in the second half of the part that
    fits, the cut is at the end of a word if possible. If nothing fits, the result is ``""``.
    """
    # A piece that is cut within may take one token more.
    left, room = float(max_tokens), count_tokens(CUT) + 1
    end = 0
    for place, tokens in _measure_pieces(text):
        left -= tokens
        if left < 0:
            break
        if left >= room:
            end = place
    else:
        return text
    # The characters after a full stop show whether a sentence ends there.
    ends = compile_sentence_end_pattern().finditer(text[: end + _LOOK_AHEAD])
    if sentences := [place for match in ends if end / 2 <= (place := match.end()) <= end]:
        end = sentences[-1]
    elif text[end - 1 : end + 1].isalnum():
        space = max(text.rfind(" ", 0, end), text.rfind("\n", 0, end))
        end = space if space >= end / 2 else end
    kept = text[:end].rstrip()
    return kept + CUT if kept else ""
