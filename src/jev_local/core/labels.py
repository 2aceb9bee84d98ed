"""Labels: the short texts that stand for options in a prompt, and the tokens that the model answers with.

A vocabulary is asked once, at start-up, how it spells some 1,400 short texts (`candidate_texts`). What it spells as
one token can be read in one forward pass. Where those run out, labels of two tokens take over: their probability is
P(first) x P(second | first), so the first tokens are kept as few as possible, each costing one more short pass.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import ascii_lowercase, ascii_uppercase

from jev_local.core.questions import MAX_OPTIONS


@dataclass(frozen=True, slots=True)
class Label:
    """`text` as shown in the prompt, `tokens` (one or two ids) as the model would write it."""

    text: str
    tokens: tuple[int, ...]


class NotEnoughLabels(ValueError):
    """The vocabulary cannot tell that many options apart."""


def candidate_texts() -> tuple[str, ...]:
    """Every text that may become a label, in order of preference: A-Z, then AA-ZZ, then aa-zz."""
    pairs = [[a + b for a in alphabet for b in alphabet] for alphabet in (ascii_uppercase, ascii_lowercase)]
    return (*ascii_uppercase, *pairs[0], *pairs[1])


@dataclass(frozen=True, slots=True)
class LabelBook:
    """The labels that one vocabulary offers.

    singles: alphabets of one-token labels; the first that is long enough is used whole, so that a question's
             labels look alike.
    pairs: two-token labels, grouped by first token, the largest groups first.
    """

    singles: tuple[tuple[Label, ...], ...]
    pairs: tuple[tuple[Label, ...], ...]

    @classmethod
    def build(cls, spelling: Mapping[str, Sequence[int]]) -> LabelBook:
        """From text -> token ids. A text that shares its token with another is left out: it could not be told apart."""
        by_text = {text: tuple(spelling[text]) for text in candidate_texts() if text in spelling}
        seen: dict[tuple[int, ...], str] = {}
        for text, tokens in by_text.items():
            seen.setdefault(tokens, text)
        labels = [Label(text, tokens) for tokens, text in seen.items()]
        one = [label for label in labels if len(label.tokens) == 1]
        letters = tuple(label for label in one if len(label.text) == 1)
        upper = tuple(label for label in one if len(label.text) == 2 and label.text.isupper())
        lower = tuple(label for label in one if len(label.text) == 2 and label.text.islower())
        groups: dict[int, list[Label]] = defaultdict(list)
        for label in labels:
            # Upper case only: mixing cases of one letter would put look-alikes side by side.
            if len(label.tokens) == 2 and label.text.isupper():
                groups[label.tokens[0]].append(label)
        ranked = sorted((tuple(group) for group in groups.values()), key=lambda g: (-len(g), g[0].text))
        return cls(singles=(letters, upper, (*letters, *upper, *lower)), pairs=tuple(ranked))

    def choose(self, count: int) -> tuple[Label, ...]:
        """`count` labels, all of one token if the vocabulary has them, else all of two tokens."""
        for alphabet in self.singles:
            if len(alphabet) >= count:
                return alphabet[:count]
        chosen: list[Label] = []
        for group in self.pairs:
            chosen.extend(group[: count - len(chosen)])
            if len(chosen) == count:
                return tuple(chosen)
        raise NotEnoughLabels(f"this vocabulary has labels for {self.capacity} options, not for {count}")

    def lifted(self, labels: Sequence[Label]) -> tuple[int, ...]:
        """The tokens that get the bias when `labels` are read, sorted. Where they are letters, all letters: questions
        with few options are then asked alike, however many each has, and can share one round trip."""
        letters = {label.tokens for label in self.singles[0]}
        alike = self.singles[0] if all(label.tokens in letters for label in labels) else labels
        return tuple(sorted({label.tokens[0] for label in alike}))

    @property
    def single_capacity(self) -> int:
        """Up to how many options one forward pass can tell apart, at most 255."""
        return min(MAX_OPTIONS, max((len(alphabet) for alphabet in self.singles), default=0))

    @property
    def capacity(self) -> int:
        return min(MAX_OPTIONS, max(self.single_capacity, sum(len(group) for group in self.pairs)))
