from __future__ import annotations

import pytest

from jev_local.core.frame import EDGE, STAND_IN, Frame, TemplateRefused, cut, frame, messages
from jev_local.core.prompts import DEFAULT_STYLE, PromptStyle, question_text, shared_text
from jev_local.core.questions import Choice, Noul, Option, Score

PLAIN = PromptStyle(name="plain", system="Decide.")


@pytest.mark.parametrize(
    ("question", "text"),
    [
        (Noul("q", "Refund?"), "Question: Refund?\nA: yes\nB: no\nAnswer:"),
        (Noul("q", "Refund?", "explicit"), "Question: Refund?\nA: yes (explicit)\nB: no\nAnswer:"),
        (Noul("q", None, None, "none"), "Question: Is it true?\nA: yes\nB: no (none)\nAnswer:"),
        (
            Choice("q", "Who?", (Option("billing", "money"), Option("tech"))),
            "Question: Who?\nA: billing (money)\nB: tech\nAnswer:",
        ),
        (Score("q", None, ("calm", "angry")), "Question: Which level fits best?\nA: calm\nB: angry\nAnswer:"),
    ],
)
def test_a_question_shows_keys_and_descriptions(question: Noul | Choice | Score, text: str) -> None:
    assert question_text(PLAIN, question, ["A", "B"]) == text


def test_ids_are_not_shown() -> None:
    assert "secret-id" not in question_text(DEFAULT_STYLE, Noul("secret-id", "Refund?"), ["A", "B"])


def test_callers_braces_are_text() -> None:
    option = Option("{label}", "{text.__class__}")
    assert "A: {label} ({text.__class__})" in question_text(PLAIN, Choice("q", "{0}", (option,)), ["A"])


def test_the_state_stands_between_our_own_words() -> None:
    text = shared_text(DEFAULT_STYLE, " x ") + question_text(DEFAULT_STYLE, Noul("q", " y "), ["A", "B"])
    assert text == text.strip(), "a template that trims finds nothing of the caller's to trim"
    assert " x \n" in text


@pytest.mark.parametrize(
    ("rendered", "head", "tail", "trims"),
    [
        (f"<user>{EDGE}{STAND_IN}{EDGE}</user>", "<user>", "</user>", False),
        (f"<user>{STAND_IN}</user>", "<user>", "</user>", True),
        # Spaces of the template's own stay its own, whether it trims the message or not.
        (f"[INST] {STAND_IN} [/INST]", "[INST] ", " [/INST]", True),
        (f"[INST] {EDGE}{STAND_IN}{EDGE} [/INST]", "[INST] ", " [/INST]", False),
        (f"<user>{EDGE}{STAND_IN}</user>", "<user>", "</user>", True),
    ],
)
def test_a_template_is_cut_at_the_users_text(rendered: str, head: str, tail: str, trims: bool) -> None:
    got = cut(rendered)
    assert (got.head, got.tail, got.trims) == (head, tail, trims)


@pytest.mark.parametrize("rendered", ["nothing", f"{STAND_IN}{STAND_IN}", STAND_IN.upper()])
def test_a_template_that_changes_the_text_is_refused(rendered: str) -> None:
    with pytest.raises(TemplateRefused):
        cut(rendered)


def test_a_model_without_a_system_role_reads_the_system_text_first() -> None:
    assert messages("Decide.", system_role=False) == [{"role": "user", "content": f"Decide.\n{EDGE}{STAND_IN}{EDGE}"}]
    assert [m["role"] for m in messages("Decide.", system_role=True)] == ["system", "user"]
    assert messages("", system_role=True) == [{"role": "user", "content": f"{EDGE}{STAND_IN}{EDGE}"}]


@pytest.mark.parametrize(
    ("head", "bos", "begins"),
    [((5, 6), (1,), (1, 5, 6)), ((1, 5), (1,), (1, 5)), ((5, 6), (), (5, 6))],
)
def test_one_bos_never_two(head: tuple[int, ...], bos: tuple[int, ...], begins: tuple[int, ...]) -> None:
    assert frame(head, (9,), bos=bos) == Frame(begins, (9,))
