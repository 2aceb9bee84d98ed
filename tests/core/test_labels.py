from __future__ import annotations

import pytest

from jev_local.core.labels import LabelBook, NotEnoughLabels, candidate_texts

LETTERS = {text: [ord(text)] for text in candidate_texts() if len(text) == 1}
BYTES = {text: [ord(c) for c in text] for text in candidate_texts()}
"""A vocabulary of single characters: every two-letter label has two tokens."""
WHOLE = {text: [i] for i, text in enumerate(candidate_texts())}
"""A vocabulary in which every candidate is one token."""


@pytest.mark.parametrize("count", [2, 3, 25, 26])
def test_up_to_26_options_go_by_letters(count: int) -> None:
    texts = [label.text for label in LabelBook.build(WHOLE).choose(count)]
    assert texts == [chr(ord("A") + i) for i in range(count)]


@pytest.mark.parametrize("count", [27, 255])
def test_more_options_go_by_labels_that_look_alike(count: int) -> None:
    labels = LabelBook.build(WHOLE).choose(count)
    assert len({label.tokens for label in labels}) == count
    assert all(len(label.text) == 2 and label.text.isupper() and len(label.tokens) == 1 for label in labels)


@pytest.mark.parametrize(("count", "firsts"), [(27, 2), (52, 2), (53, 3), (255, 10)])
def test_without_single_tokens_pairs_share_as_few_first_tokens_as_possible(count: int, firsts: int) -> None:
    labels = LabelBook.build(BYTES).choose(count)
    assert len({label.tokens for label in labels}) == count
    assert len({label.tokens[0] for label in labels}) == firsts


def test_texts_with_the_same_token_are_one_label() -> None:
    folded = WHOLE | {"B": WHOLE["A"]}
    assert [label.text for label in LabelBook.build(folded).choose(3)] == ["A", "C", "D"]


def test_a_poor_vocabulary_says_what_it_can_do() -> None:
    book = LabelBook.build(LETTERS)
    assert (book.single_capacity, book.capacity) == (26, 26)
    with pytest.raises(NotEnoughLabels, match="labels for 26 options, not for 27"):
        book.choose(27)


def test_capacity_is_never_more_than_the_contract_allows() -> None:
    assert (LabelBook.build(WHOLE).single_capacity, LabelBook.build(BYTES).capacity) == (255, 255)


def test_letters_are_lifted_all_together_so_that_questions_share_a_round_trip() -> None:
    book = LabelBook.build(WHOLE)
    letters = tuple(sorted(WHOLE[chr(ord("A") + i)][0] for i in range(26)))
    assert {book.lifted(book.choose(count)) for count in (2, 3, 26)} == {letters}


@pytest.mark.parametrize(("spelling", "count", "tokens"), [(WHOLE, 27, 27), (BYTES, 27, 2), (BYTES, 255, 10)])
def test_other_labels_are_lifted_alone_each_first_token_once(
    spelling: dict[str, list[int]], count: int, tokens: int
) -> None:
    book = LabelBook.build(spelling)
    lifted = book.lifted(book.choose(count))
    assert lifted == tuple(sorted({label.tokens[0] for label in book.choose(count)}))
    assert len(lifted) == tokens
