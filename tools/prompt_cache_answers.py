"""Whether an answer is the one that was to be found, so that a server that is fast and wrong shows.

Letters' case, punctuation, accents on quotation marks and line ends are nothing to judge by: words are.
"""

from __future__ import annotations

import re
from difflib import SequenceMatcher
from typing import Literal

from tools.prompt_cache_material import Question

Verdict = Literal["correct", "policy sentence missing", "no reason"]
VERDICTS: tuple[Verdict, ...] = ("correct", "policy sentence missing", "no reason")

VERBATIM = 0.8
"""Of the sentence's words, how many have to stand in a row."""

REASON_WORDS = 4
"""Of whatever is not the sentence."""


def judge(answer: str, question: Question) -> Verdict:
    """The sentence has to be there, and outside of it a reason: a few words, one of those that belong to a reason for
    this question, and none that says the opposite."""
    said, wanted = words(answer), words(question.sentence)
    found = SequenceMatcher(None, said, wanted, autojunk=False).find_longest_match()
    if found.size < VERBATIM * len(wanted):
        return "policy sentence missing"
    begin = max(0, found.a - found.b)
    rest = [*said[:begin], "", *said[begin + len(wanted) :]]  # "" keeps what stood on either side apart
    told = len(rest) > REASON_WORDS and (not question.reason or any(has(rest, one) for one in question.reason))
    return "correct" if told and not any(has(rest, one) for one in question.against) else "no reason"


def words(text: str) -> list[str]:
    """Without case and punctuation; "don't" is one word, however its apostrophe is written."""
    return re.findall(r"\w+", re.sub(r"['’`]", "", text.casefold()))


def has(said: list[str], phrase: str) -> bool:
    """Whether the words of `phrase` stand in a row."""
    wanted = words(phrase)
    return any(said[at : at + len(wanted)] == wanted for at in range(len(said) - len(wanted) + 1))
