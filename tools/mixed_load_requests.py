"""What `mixed_load` sends, and what has to come back."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tools.state_cache_cases import example, with_history

MARK = "Quorvane"
"""Stands in every state that is sent, and nowhere else: so a log can be searched for states."""

REPEATED = 20
"""States that come again and again."""

LONG_BYTES = 6000

WEIGHTS = {"question": 70, "leave": 15, "bad": 10, "look": 3, "clear": 2}

BAD: tuple[bytes, ...] = (
    b"",
    b'{"state": "cut o',
    b'{"state": "no questions", "questions": {}}',
    b'{"questions": {"a": {"type": "noul"}}}',
    b'{"state": "x", "questions": {"a": {"type": "riddle"}}}',
    b'{"state": "x", "questions": {"a": {"type": "choice", "criteria": {}}}}',
    b'{"state": "x", "state": "y", "questions": {"a": {"type": "noul"}}}',
    b"[NaN]",
    b"\xff\xfe",
)


@dataclass(frozen=True, slots=True)
class Errand:
    """One thing that a client does. leaves: seconds after which it goes away, None where it stays."""

    kind: str
    method: str = "POST"
    path: str = "/v1/systemone"
    content: bytes = b""
    questions: Mapping[str, Any] | None = None
    leaves: float | None = None


class Mix:
    """Errands drawn at random, the same ones for the same seed. `longest`: bytes that a state may have."""

    def __init__(self, seed: int, *, longest: int) -> None:
        self._dice = random.Random(seed)  # noqa: S311  # nothing secret
        self._longest = longest
        self._questions: dict[str, Any] = example(12)["questions"]

    def draw(self) -> Errand:
        (kind,) = self._dice.choices([*WEIGHTS], [*WEIGHTS.values()])
        match kind:
            case "bad":
                return Errand(kind, content=self._dice.choice(BAD))
            case "look":
                return Errand(kind, "GET", self._dice.choice(("/v1/cache", "/ready", "/v1/models")))
            case "clear":
                return Errand(kind, "DELETE", "/v1/cache")
        ids = self._dice.sample([*self._questions], self._dice.randint(1, len(self._questions)))
        questions = {id_: self._questions[id_] for id_ in ids}
        content = json.dumps({"state": self._state(), "questions": questions}).encode()
        leaves = self._dice.uniform(0.02, 1.0) if kind == "leave" else None
        return Errand(kind, content=content, questions=questions, leaves=leaves)

    def _state(self) -> str:
        """One of a few, or one that was never there; half of either are long."""
        again = self._dice.random() < 0.5
        number = self._dice.randrange(REPEATED) if again else self._dice.getrandbits(48)
        is_long = number % 2 == 1
        lines = self._dice.randint(5, 60) if is_long and not again else 40 if is_long else 1
        state = f"{MARK} {number}\n{with_history({'state': MARK}, lines)['state']}"
        return state.encode()[: self._longest].decode(errors="ignore")


def fault(errand: Errand, status: int, body: bytes) -> str:
    """What is wrong with a reply, in words without any of its text; "" where nothing is."""
    if status >= 500:
        return f"{errand.kind}: status {status}"
    if errand.kind == "bad":
        return "" if status in (400, 422) else f"a bad body was answered with {status}"
    if status != 200:
        return f"{errand.kind}: status {status}"
    try:
        value = json.loads(body)
    except ValueError:
        return f"{errand.kind}: the reply is no JSON"
    return "" if errand.questions is None else answer_fault(errand.questions, value)


def answer_fault(questions: Mapping[str, Any], reply: Any) -> str:
    """What is wrong with the shape of the answers to `questions`."""
    checks: dict[str, Callable[[Any, Any], bool]] = {"noul": _is_noul, "choice": _is_choice, "score": _is_score}
    try:
        if list(reply["answers"]) != list(questions):
            return "the answers are not those of the questions, in their order"
        if not (isinstance(reply["model"], str) and reply["usage"]["input_tokens"] > 0):
            return "the model or the usage is missing"
        for id_, question in questions.items():
            if not checks[question["type"]](question, reply["answers"][id_]):
                return f"the answer to a {question['type']} does not have its shape"
    except (KeyError, TypeError, AttributeError, ValueError):
        return "a field is missing or has the wrong type"
    return ""


def _is_noul(_: Any, answer: Any) -> bool:
    return 0 <= float(answer["noul"]) <= 1


def _is_choice(question: Any, answer: Any) -> bool:
    keys = list(question["criteria"])
    return answer["choice"] in keys and _is_distribution(answer, keys)


def _is_score(question: Any, answer: Any) -> bool:
    levels = [str(i) for i in range(len(question["criteria"]))]
    return 0 <= float(answer["score"]) <= len(levels) - 1 and _is_distribution(answer, levels)


def _is_distribution(answer: Any, keys: list[str]) -> bool:
    found = answer["probabilities"]
    in_range = 0 <= float(answer["confidence"]) <= 1 and all(0 <= p <= 1 for p in found.values())
    return in_range and list(found) == keys and math.isclose(sum(found.values()), 1, abs_tol=1e-6)
