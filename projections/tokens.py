"""Analysis: the words of a text as search keeps and asks for them; one function, versioned."""

import re
import unicodedata
from collections import Counter

ANALYSIS_VERSION = 1
"""A change of the analysis is a new number: the index is computed again."""

QUERY_TOKENS_MAX = 64
"""A query of ten thousand characters asks for its first words, not for all of them."""

WORD_PART_MIN = 3
"""Letters from which a term is also looked for inside words."""

_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003134f"
_RUN = re.compile(f"[{_CJK}]+|[^\\W_{_CJK}]+(?:[''’][^\\W_{_CJK}]+)*")
_VOICED = "\u3099\u309a"  # kana's own marks, which change the letter
_IS_CJK = re.compile(f"[{_CJK}]")

# What a question is made of, in English: it says nothing of the matter.
_FUNCTION_WORDS = frozenset(
    re.findall(
        r"\w+",
        "a about after all also am an and any are as at be been before being but by can could did"
        " do does doing for from had has have having he her here him his how i if in into is it its"
        " just like me more most my no not of on one or other our out over own she should so some"
        " such than that the their them then there these they this those to too up us very was we"
        " were what when where which while who whom whose why will with would you your please tell"
        " remember know",
    )
)
# What splits a Chinese question: particles and question words.
_PARTICLES = re.compile(
    "为什么|什么|怎么|怎样|哪里|哪儿|哪个|多少|几时|是否|请问|[的了吗呢吧啊呀么是在有和与也都就很我你他她它们]"
)


def index_tokens(text: str) -> Counter[str]:
    """Every word with its count; of a CJK run its characters and its overlapping pairs."""
    tokens: Counter[str] = Counter()
    for run in _RUN.findall(folded(text)):
        if _IS_CJK.match(run):
            tokens.update(run)
            tokens.update(_pairs(run))
        else:
            tokens[_word(run)] += 1
    return tokens


def query_tokens(text: str) -> list[str]:
    """The words that a query asks for, without what every question has; in order, each once."""
    tokens: list[str] = []
    for run in _RUN.findall(folded(text)):
        if _IS_CJK.match(run):
            for piece in filter(None, _PARTICLES.split(run)):
                tokens.extend(_pairs(piece) if len(piece) > 1 else [piece])
        elif run not in _FUNCTION_WORDS:
            tokens.append(_word(run))
    return list(dict.fromkeys(tokens))[:QUERY_TOKENS_MAX]


def folded(text: str) -> str:
    """The form in which texts are compared: NFKC, case folded, without marks."""
    decomposed = unicodedata.normalize("NFKD", unicodedata.normalize("NFKC", text).casefold())
    bare = "".join(c for c in decomposed if unicodedata.category(c) != "Mn" or c in _VOICED)
    return unicodedata.normalize("NFC", bare)


def _pairs(run: str) -> list[str]:
    return [run[at : at + 2] for at in range(len(run) - 1)]


def _word(run: str) -> str:
    return run.removesuffix("'s").removesuffix("’s")


def is_matched(text: str, terms: list[str]) -> bool:
    """Whether every folded term is a word of the folded text, or inside one: from three letters
    for alphabetic scripts, from one character for CJK (PM 5.3)."""
    words = _RUN.findall(text)
    return all(_is_in(term, text, words) for term in terms)


def _is_in(term: str, text: str, words: list[str]) -> bool:
    if _IS_CJK.search(term) or len(term) >= WORD_PART_MIN:
        return term in text
    return term in words
