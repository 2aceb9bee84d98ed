"""What `benchmark_state_cache` asks: the example's questions, about a state as long as each case wants it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from jev_local.backend.port import Backend
from jev_local.core.plan import PrefixPlan, share
from jev_local.core.prompts import question_text, shared_text
from jev_local.core.questions import width
from jev_local.engine.session import Session, tokenize_chats
from jev_local.errors import JevError
from jev_local.wire.intake import read_request

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "systemone.json"

SHORT, WARM, REVISIT = "short", "warm", "revisit"
DEFAULT_CASES = (SHORT, "365", "1025", WARM, REVISIT)

WARM_TOKENS, REVISIT_TOKENS = 1025, 365
REVISITED = 12
"""States. More than there are slots, so that a second visit finds most of them in files only."""
REVISIT_QUESTIONS = 3

FIRST_CONTACT = date(2025, 1, 7)
EVENTS = (
    "電話で料金の内訳を尋ねられ、明細の見方を説明した。",
    "引っ越しの連絡を受け、請求書の送り先を改めた。",
    "アプリに入れないとの相談。合言葉を作り直して解決した。",
    "支払い方法を銀行振込からカードに変えた。",
    "先月分の領収書を求められ、メールで送った。",
    "通信が遅いとの苦情。機器を再起動して直った。",
    "家族割引の条件を尋ねられ、案内を郵送した。",
    "契約の更新月を確認したいとのこと。六月と伝えた。",
)

OTHER_QUESTIONS: dict[str, Any] = {
    "moved": {"type": "noul", "instructions": "お客様は引っ越しましたか。"},
    "payment": {
        "type": "choice",
        "instructions": "いまの支払い方法はどれですか。",
        "criteria": {"card": "カード", "transfer": "銀行振込", "cash": "現金"},
    },
    "politeness": {
        "type": "score",
        "instructions": "文面はどれくらい丁寧ですか。",
        "criteria": ["乱暴", "ふつう", "とても丁寧"],
    },
}
"""Asked first where a case wants a state that was read already."""


class CannotMeasure(JevError):
    """What was asked for cannot be measured on this server."""


@dataclass(frozen=True, slots=True)
class Case:
    """A request body and what it comes to on this model: `plan` has the tokens of its prompts."""

    name: str
    body: dict[str, Any]
    plan: PrefixPlan

    @property
    def questions(self) -> int:
        return len(self.plan.rests)

    @property
    def prefix_tokens(self) -> int:
        return self.plan.prefix

    @property
    def suffix_tokens(self) -> int:
        """Of all questions, behind what they agree on."""
        return sum(len(self.plan.stem) + len(rest) - self.plan.prefix for rest in self.plan.rests)


def example(questions: int) -> dict[str, Any]:
    """The example's request with its first `questions`."""
    body: dict[str, Any] = json.loads(EXAMPLE.read_text(encoding="utf-8"))
    return {**body, "questions": dict(list(body["questions"].items())[:questions])}


def with_history(body: dict[str, Any], lines: int, *, customer: int = 0) -> dict[str, Any]:
    """`body` with so many lines about the same customer before its state. Two customers' states differ from their
    first line on."""
    days = (FIRST_CONTACT + timedelta(days=9 * i) for i in range(lines))
    history = [f"{day.year}年{day.month}月{day.day}日 {EVENTS[i % len(EVENTS)]}" for i, day in enumerate(days)]
    number = [f"お客様番号 {4107 + 613 * customer}"] if customer else []
    return {**body, "state": "\n".join([*number, *history, body["state"]])}


async def plan_of(backend: Backend, session: Session, body: dict[str, Any]) -> PrefixPlan:
    """The prompts that the engine makes of `body`."""
    intake = read_request(json.dumps(body).encode())
    added = [
        question_text(session.style, question, [label.text for label in session.labels.choose(width(question))])
        for question in intake.questions
    ]
    shared = shared_text(session.style, intake.state)
    stem, rests = await tokenize_chats(backend, session, shared=shared, added=added)
    return share(stem, rests)


async def make(backend: Backend, session: Session, name: str, *, questions: int, tokens: int = 0) -> Case:
    """The case with as few lines of history as its prefix needs to have `tokens`."""
    lines, body = 0, example(questions)
    plan = await plan_of(backend, session, body)
    while plan.prefix < tokens:
        lines += 1
        body = with_history(example(questions), lines)
        plan = await plan_of(backend, session, body)
        require_room(name, plan, session.info.context)
    require_room(name, plan, session.info.context)
    return Case(name, body, plan)


def require_room(name: str, plan: PrefixPlan, context: int) -> None:
    """The floor reads all questions in one prompt, which is longer than any of the engine's."""
    needed = plan.prefix + sum(len(plan.stem) + len(rest) - plan.prefix for rest in plan.rests) + 1
    if needed > context:
        raise CannotMeasure(
            f"The case {name} needs {needed} tokens of context, and the inference server has {context}. Start it with "
            f"a larger CTX_SIZE, ask fewer --questions, or choose other --cases."
        )


async def revisited(backend: Backend, session: Session, *, questions: int) -> list[Case]:
    """States of the same length, each of another customer."""
    asked = min(questions, REVISIT_QUESTIONS)
    lines = 0
    cases: list[Case] = []
    for customer in range(1, REVISITED + 1):
        while True:
            body = with_history(example(asked), lines, customer=customer)
            plan = await plan_of(backend, session, body)
            require_room(REVISIT, plan, session.info.context)
            if plan.prefix >= REVISIT_TOKENS:
                break
            lines += 1
        cases.append(Case(REVISIT, body, plan))
    return cases


def case_names(text: str) -> list[str]:
    """The names in `--cases`, each once. ValueError for one that there is not."""
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for name in names:
        is_size = name.isascii() and name.isdecimal() and int(name) > 0
        if name not in (SHORT, WARM, REVISIT) and not is_size:
            raise ValueError(f"{name!r} is no case: {SHORT}, {WARM}, {REVISIT}, or a number of tokens such as 365")
    if not names:
        raise ValueError("no case is named")
    return names
