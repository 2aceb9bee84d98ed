"""What `benchmark_prompt_cache` asks: one long policy, and questions that each have a sentence of it for an answer.

A prompt begins with an edition, a number that nobody has sent before, so that "not read before" is true of it however
often a server was measured already.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"
POLICY, QUESTIONS = DATA / "policy.txt", DATA / "questions.json"

INSTRUCTION = (
    "Return the sentence of the policy that applies, word for word, and one short reason that fits the question."
)
LIMIT = 4 * 1024 * 1024
"""Bytes of a file that is read."""


class BadMaterial(Exception):
    """The policy or the questions cannot be used; the text says why."""


@dataclass(frozen=True, slots=True)
class Question:
    """sentence: of the policy, to be found in an answer. A reason for it has one of `reason` in it, where there are
    any, and none of `against`."""

    text: str
    sentence: str
    reason: tuple[str, ...] = ()
    against: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Prompt:
    """Two messages. edition: the number that its policy begins with."""

    system: str
    user: str
    question: Question
    edition: str = ""


@dataclass(frozen=True, slots=True)
class Material:
    policy: str
    questions: tuple[Question, ...]

    def prompt(
        self, edition: str, number: int, *, case: int | None = None, before: str = "", behind: str = ""
    ) -> Prompt:
        """Question `number`, counted around, about `edition` of the policy. `before` goes in front of everything, and
        `behind` in front of the question. `case` tells apart clients with the same question."""
        question = self.questions[number % len(self.questions)]
        system = f"{_line(before)}Edition {edition}.\n{INSTRUCTION}\n\nPolicy:\n{self.policy}"
        user = _line(behind) + (question.text if case is None else f"Case {case}. {question.text}")
        return Prompt(system, user, question, edition)

    def without_policy(self) -> Prompt:
        """What is left of the first question's prompt, for counting the rest."""
        question = self.questions[0]
        return Prompt(f"{INSTRUCTION}\n\nPolicy:\n", question.text, question)


def _line(text: str) -> str:
    return f"{text}\n" if text else ""


def fresh() -> str:
    """An edition that nobody has sent before."""
    return secrets.token_hex(4)


def stamp(number: int) -> str:
    """What applications like to put in front: a time and a customer, other ones in every request."""
    customer = secrets.randbelow(900_000) + 100_000
    return f"Now: 2026-11-30T09:{number // 60 % 60:02d}:{number % 60:02d}Z. Customer: C-{customer}."


def load(policy: Path = POLICY, questions: Path = QUESTIONS) -> Material:
    """BadMaterial where a file cannot be read, or a question's sentence is not in the policy."""
    text = _read(policy).strip()
    if not text:
        raise BadMaterial(f"{policy} is empty.")
    try:
        listed = json.loads(_read(questions))
    except (json.JSONDecodeError, RecursionError) as error:
        raise BadMaterial(f"{questions} is not JSON: {error}.") from error
    if not isinstance(listed, list) or len(listed) < 2:
        raise BadMaterial(f"{questions} has to be a list of two questions or more.")
    made = tuple(_question(one, f"{questions}, question {number}") for number, one in enumerate(listed, start=1))
    for number, question in enumerate(made, start=1):
        if " ".join(question.sentence.split()) not in " ".join(text.split()):
            raise BadMaterial(f"The sentence of question {number} is not in the policy: {question.sentence!r}.")
    return Material(text, made)


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(LIMIT + 1)
        if len(content) > LIMIT:
            raise BadMaterial(f"{path} is larger than {LIMIT} bytes.")
        return content.decode()
    except OSError as error:
        raise BadMaterial(f"{path}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise BadMaterial(f"{path} is not UTF-8.") from error


def _question(raw: Any, where: str) -> Question:
    if not isinstance(raw, dict):
        raise BadMaterial(f"{where} has to be an object.")
    unknown = sorted(set(raw) - {"question", "sentence", "reason", "against"})
    if unknown:
        raise BadMaterial(f"{where} has a field that is not known: {unknown[0]!r}.")
    for name in ("question", "sentence"):
        if not isinstance(raw.get(name), str) or not raw[name].strip():
            raise BadMaterial(f"{where} needs a text as {name!r}.")
    return Question(raw["question"], raw["sentence"], _phrases(raw, "reason", where), _phrases(raw, "against", where))


def _phrases(raw: dict[str, Any], name: str, where: str) -> tuple[str, ...]:
    listed = raw.get(name, [])
    if not isinstance(listed, list) or not all(isinstance(one, str) and one.strip() for one in listed):
        raise BadMaterial(f"{where}: {name!r} has to be a list of phrases.")
    return tuple(listed)
