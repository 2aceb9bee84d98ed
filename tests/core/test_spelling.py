from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jev_local.core.controls import WORD_JOINER, disarmed
from jev_local.core.pictures import Album, Picture
from jev_local.core.plan import common
from jev_local.core.spelling import Piece, Spelled, Spelling, blocks, joined, picture_tokens, steps

CAT, DOG = Picture(b"cat", 2, 1), Picture(b"dog", 1, 2)


def piece(text: str) -> Piece:
    return Piece(text, tuple(text.encode()))


def seen(picture: Picture, size: int = 5) -> Piece:
    return Piece(picture, picture_tokens(picture, size))


TWO = Spelling(
    (piece("head "), seen(CAT), piece("\nstate\n")),
    ((piece("Question:"), piece(" one?")), (piece("Question:"), piece(" "), seen(DOG), piece("?"))),
    {65: "A"},
)


def test_a_spelling_as_tokens() -> None:
    plan = TWO.plan
    assert plan.stem == tuple(b"head ") + picture_tokens(CAT, 5) + tuple(b"\nstate\n")
    assert (plan.prefix, plan.step) == (len(plan.stem), len("Question:"))
    assert plan.rests == (tuple(b"Question: one?"), tuple(b"Question: ") + picture_tokens(DOG, 5) + tuple(b"?"))
    assert Spelling(TWO.stem, TWO.rests[:1]).plan.prefix == 0, "a single prompt shares nothing"
    assert (TWO.cuts, TWO.heaviest) == ((5, 10, 17), 6)


def test_every_place_that_it_can_be_cut_at() -> None:
    plan = TWO.plan
    stem = ("head ", CAT, "\nstate\n")
    expected = {
        plan.stem[:5]: ("head ",),
        plan.stem[:10]: ("head ", CAT),
        plan.stem: stem,
        plan.stem + tuple(b"Question:"): ("head ", CAT, "\nstate\nQuestion:"),
        plan.prompt(0): ("head ", CAT, "\nstate\nQuestion: one?"),
        plan.prompt(1): ("head ", CAT, "\nstate\nQuestion: ", DOG, "?"),
        (*plan.prompt(0), 65): ("head ", CAT, "\nstate\nQuestion: one?A"),
    }
    for tokens, contents in expected.items():
        assert TWO.spell(tokens) == Spelled(contents, len(tokens))
    with pytest.raises(ValueError, match="not in tuple"):
        TWO.spell(plan.stem[:7])
    with pytest.raises(LookupError):
        TWO.spell((*plan.stem, 1))


def test_pictures_are_told_apart_and_are_no_tokens() -> None:
    cat, dog = picture_tokens(CAT, 64), picture_tokens(DOG, 64)
    assert (len(cat), cat, common(cat, dog)) == (64, picture_tokens(Picture(b"cat", 2, 1), 64), 0)
    assert all(-(2**62) < token < -1 for token in cat + dog)
    assert len(set(cat)) == 4, "224 bits of its digest"


@given(st.text(alphabet="ab \n.語", max_size=200), st.integers(1, 40))
def test_blocks_are_the_text(text: str, size: int) -> None:
    parts = blocks(text, size)
    assert "".join(parts) == text
    for left, right in pairwise(parts):
        assert len(left) >= size
        assert (left[-1] == "\n" and right[0].isalnum()) or (left[-1].isalnum() and right[0] == " ")


@pytest.mark.parametrize(
    ("held", "end", "cuts", "expected"),
    [
        (0, 1200, None, [512, 1024, 1200]),
        (600, 1200, None, [1112, 1200]),
        (1200, 1200, None, [1200]),
        (0, 1200, (100, 500, 700, 1200), [500, 1200]),
        (0, 1300, (20, 400, 800, 1280, 1300), [400, 800, 1300]),
        (0, 1340, (20, 1320, 1321, 1340), [1340]),
        (0, 1200, (100, 1200), [1200]),
        (0, 1200, (1200,), [1200]),
        (600, 1200, (100, 500, 700, 1200), [1200]),
        (700, 1200, (100, 500, 700, 1200), [1200]),
        (0, 400, (100, 400), [400]),
        (0, 400, (400, 900), [400]),
    ],
)
def test_steps(held: int, end: int, cuts: tuple[int, ...] | None, expected: list[int]) -> None:
    assert steps(held, end, 512, cuts=cuts) == expected


def test_an_album_cuts_texts_at_its_marks() -> None:
    album = Album((), {"[image 1]": CAT, "[image 2]": DOG})
    assert album.split("a[image 2][image 1]b[image 2]") == ["a", DOG, CAT, "b", DOG]
    assert (album.split(""), album.split("x"), Album().split("[image 1]")) == ([], ["x"], ["[image 1]"])
    assert (bool(album), bool(Album((CAT,))), bool(Album())) == (True, True, False)


def test_control_strings_are_broken_longest_first() -> None:
    joiner = WORD_JOINER
    assert disarmed("a <|end|> b", ["<|end|>"]) == f"a <{joiner}|end|> b"
    assert disarmed("<<x>>", ["<x>", "<<x>>"]) == f"<{joiner}<{joiner}x>>"
    assert disarmed("abc", ["", "b", "xyz"]) == "abc", "what has one character cannot be broken"


def test_joined() -> None:
    assert joined(TWO.stem) == TWO.plan.stem
