# SPDX-License-Identifier: Apache-2.0
"""Words of texts and queries for the full-text index: folded, and pairs of characters in scripts without spaces.

Text is normalised (NFKC) and case-folded, so `ｶﾀｶﾅ` is found by `カタカナ`, and `Straße` by `strasse`. A run of a
script without spaces becomes pairs of neighbouring characters and its last character: `配送遅` is `配送 送遅 遅`. A
query for such a run is a phrase of its pairs, so `配送` is found in `東京都の配送`, and `京配` is not.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from forebay.errors import ConfigurationError

UNICODE: Final = f"{unicodedata.unidata_version}, words with marks"
"""By which version of Unicode this Python folds text, and what a word is. It is stored with each index."""

LONGEST: Final = 32_767
"""Bytes up to which FTS5 tells words apart: it cuts them."""

WORDS: Final = 1_000
"""Words of a query. FTS5 looks for each in all texts that have the rarest one, so its time grows with their square."""

CHARACTERS: Final = 20_000
"""Characters of scripts without spaces in a query. FTS5 looks for each pair of them."""

_SPACELESS: Final = (
    "\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"  # Japanese, Chinese
    "\uac00-\ud7af\u1100-\u11ff"  # Korean
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Burmese, Khmer
    "\U00020000-\U0003ffff"  # rare ideographs
)

_JOINERS: Final = {0x200C: None, 0x200D: None}
"""Characters without a width that join or part letters of one word."""


@cache
def _runs() -> re.Pattern[str]:
    r"""Return the pattern of a run: of a script without spaces, or a word, with the vowel signs and accents on it.

    Python's `\w` has no marks, so that it would cut words of Hindi, Tamil or pointed Hebrew in pieces.
    """
    letters = rf"[^\W_{_SPACELESS}]"
    marks = (chr(point) for point in range(0x300, 0x1F000) if unicodedata.category(chr(point)) in ("Mn", "Mc"))
    on_letters = "".join(mark for mark in marks if not re.match(rf"[{_SPACELESS}\ufe00-\ufe0f]", mark))
    # The set of marks is slow to look into: no mark is below U+0300, and most texts have none.
    return re.compile(rf"([{_SPACELESS}]+)|({letters}+(?:(?![\x00-\u02ff])[{on_letters}]+{letters}*)*)")


@dataclass(frozen=True)
class Phrase:
    """Words that must follow one another in a text.

    Args:
        words: The words, folded.
        prefix: Whether the last word may be the beginning of a word of the text.
    """

    words: tuple[str, ...]
    prefix: bool = False


def indexed_words(text: str) -> str:
    """Return the words of a text, joined by spaces, as the full-text index stores them."""
    if text.isascii() and "\x00" not in text:
        return text  # the tokenizer of the index finds the same words: it divides and folds ASCII
    return folded_words(text)


def folded_words(text: str) -> str:
    """Return the words of a text, joined by spaces: for an index that divides at spaces, and does not fold."""
    return " ".join(_words(_runs().findall(_folded(text))))


def search_phrases(searches: Sequence[tuple[str, bool]]) -> tuple[Phrase, ...] | None:
    """Return the phrases of searches, all of which a text must have; None if a search has no word.

    Args:
        searches: The words of each search, in which no character is syntax, and whether they must follow one another.

    Raises:
        ConfigurationError: There are too many words, or one is so long that the index cannot tell it from others.
    """
    found = [(_runs().findall(_folded(text)), phrase) for text, phrase in searches]
    every = [run for runs, _ in found for run in runs]
    if longest := next((word for _, word in every if len(word.encode()) > LONGEST), ""):
        raise ConfigurationError(
            f"the word {longest[:50]!r} … has more than {LONGEST:,} bytes, of which texts keep no more",
            option="search",
            advice="search for other words of the text",
        )
    words, characters = len(every), sum(len(spaceless) for spaceless, _ in every)
    if words > WORDS or characters > CHARACTERS:
        raise ConfigurationError(
            f"the query has {words:,} words" + (f" of {characters:,} characters" if words <= WORDS else ""),
            option="search",
            advice=f"search for at most {WORDS:,} words and {CHARACTERS:,} characters of scripts without spaces",
        )
    if not all(runs for runs, _ in found):
        return None
    return tuple(_phrase(group) for runs, phrase in found for group in ([runs] if phrase else [[run] for run in runs]))


def match_expression(phrases: Sequence[Phrase]) -> str:
    """Return the expression of FTS5 for phrases."""
    return " ".join(f'"{" ".join(each.words)}"{" *" if each.prefix else ""}' for each in phrases)


def _phrase(runs: Sequence[tuple[str, str]]) -> Phrase:
    """Return the phrase of runs. A single character at its end is the beginning of a pair, or a whole run."""
    words = _words(runs)
    last = len(runs[-1][0])
    return Phrase(tuple(words[:-1] if last > 1 else words), prefix=last == 1)


def _words(runs: Iterable[tuple[str, str]]) -> list[str]:
    """Return the words of runs: of scripts without spaces the pairs of characters, and the last character."""
    words: list[str] = []
    for spaceless, word in runs:
        if spaceless:
            words += [spaceless[place : place + 2] for place in range(len(spaceless))]
        else:
            words.append(word)
    return words


def _folded(text: str) -> str:
    if text.isascii():
        return text.lower()
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold()).translate(_JOINERS)
