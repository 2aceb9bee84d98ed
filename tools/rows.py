"""The labelled rows of `tools/data/decisions.jsonl` as questions with their gold answers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jev_local.core.questions import Choice, Noul, Option, Question, Score

ROWS = Path(__file__).parent / "data" / "decisions.jsonl"


@dataclass(frozen=True, slots=True)
class Row:
    """gold: index of the right option (noul: 0 yes, 1 no). ci: belongs to the 24 rows that every test run checks."""

    id: str
    language: str
    kind: str
    hard: bool
    ci: bool
    state: str
    question: Question
    gold: int


def load(path: Path = ROWS) -> list[Row]:
    with path.open(encoding="utf-8") as lines:
        return [_row(json.loads(line)) for line in lines if line.strip()]


def _row(raw: dict[str, Any]) -> Row:
    state = raw["state"] if isinstance(raw["state"], str) else json.dumps(raw["state"], ensure_ascii=False)
    question = _question(raw["id"], raw["question"])
    match question:
        case Noul():
            gold = 0 if raw["gold"] else 1
        case Choice():
            gold = [option.key for option in question.options].index(raw["gold"])
        case Score():
            gold = int(raw["gold"])
    return Row(raw["id"], raw["lang"], raw["type"], raw["hard"], raw["ci"], state, question, gold)


def _question(row: str, raw: dict[str, Any]) -> Question:
    asked, criteria = raw.get("instructions"), raw.get("criteria") or {}
    if raw["type"] == "noul":
        return Noul(row, asked, criteria.get("true"), criteria.get("false"))
    if raw["type"] == "choice":
        return Choice(row, asked, tuple(Option(key, text) for key, text in criteria.items()))
    return Score(row, asked, tuple(criteria))
