"""From the JSON value of a request to the questions that the engine answers."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from jev_local.core.questions import Choice, Noul, Option, Question, Score
from jev_local.errors import InvalidBody, InvalidRequest, Issue, UnknownModel
from jev_local.wire import strict_json
from jev_local.wire.schema import ChoiceQuestion, NoulCriteria, NoulQuestion, ScoreQuestion, SystemOneRequest

_ALIAS = re.compile(r"jev-(latest|preview|\d{1,9}\.\d{1,9}\.\d{1,9})", re.ASCII)
_LONGEST_NAME = 100

_FIELDS = frozenset(SystemOneRequest.model_fields)
_TYPES = frozenset(("noul", "choice", "score"))
_QUESTION_FIELDS = frozenset(("type", "instructions", "criteria"))

MAX_ISSUES = 20
"""A thousand broken questions are told about this many times."""

# Every sentence is ours: pydantic's own quote the caller's text in places (an unknown question type, for one).
_SENTENCES = {
    "missing": "is required",
    "string_type": "has to be a string",
    "bool_type": "has to be true or false",
    "list_type": "has to be an array",
    "dict_type": "has to be an object",
    "model_type": "has to be an object",
    "model_attributes_type": "has to be an object",
    "union_tag_invalid": "type has to be noul, choice or score",
    "union_tag_not_found": "type is required: noul, choice or score",
}
_OURS = frozenset(("text_type", "too_short", "too_long", "nothing_asked", "blank_option", "blank_id"))


@dataclass(frozen=True, slots=True)
class Intake:
    """A checked request. `legends` holds the levels of each score as they were sent, by question id;
    `model` is the name asked for, None where any will do."""

    state: str
    questions: tuple[Question, ...]
    legends: dict[str, tuple[Any, ...]]
    model: str | None = None
    details: bool = False


def read_request(body: bytes) -> Intake:
    """The request in `body`. Raises InvalidBody (anything wrong with it), InvalidRequest (sound, but it needs
    images, which this server does not read)."""
    value = _json(body)
    _refuse_images(value)
    try:
        request = SystemOneRequest.model_validate(value)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)
        # Without `from None` the values that pydantic keeps would travel along in the traceback.
        raise InvalidBody(*map(_issue, found[:MAX_ISSUES])) from None
    return Intake(
        state=words(request.state),
        questions=tuple(_question(id_, asked) for id_, asked in request.questions.items()),
        legends={id_: tuple(q.criteria) for id_, q in request.questions.items() if isinstance(q, ScoreQuestion)},
        model=request.model,
        details=bool(request.x_details),
    )


def check_model(asked: str | None, local: str | None) -> None:
    """Raises UnknownModel unless `asked` is one of TypeSafe's names, `local`, or left open.

    While the local name is not known yet (None), every name passes: the engine then says that it is not ready,
    which is the truth, while "unknown" might not be.
    """
    if asked is None or local is None or asked == local or _ALIAS.fullmatch(asked):
        return
    raise UnknownModel(asked if len(asked) <= _LONGEST_NAME else asked[:_LONGEST_NAME] + "…")


def words(text: str | dict[str, Any] | list[Any]) -> str:
    """A text as the model reads it: strings as they are, anything else as compact JSON in its own script."""
    if isinstance(text, str):
        return text
    return json.dumps(text, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _words(text: str | dict[str, Any] | list[Any] | None) -> str | None:
    # White space alone says as little as null, and must not end up in a prompt as a heading with nothing under it.
    return None if text is None or (isinstance(text, str) and not text.strip()) else words(text)


def _question(id_: str, asked: NoulQuestion | ChoiceQuestion | ScoreQuestion) -> Question:
    instructions = _words(asked.instructions)
    match asked:
        case NoulQuestion():
            criteria = asked.criteria or NoulCriteria()
            return Noul(id_, instructions, when_true=_words(criteria.true), when_false=_words(criteria.false))
        case ChoiceQuestion():
            return Choice(id_, instructions, tuple(Option(key, _words(text)) for key, text in asked.criteria.items()))
        case ScoreQuestion():
            return Score(id_, instructions, tuple(map(words, asked.criteria)))


def _refuse_images(value: Any) -> None:
    """Fields that carry meaning we cannot honour: to ignore them, as unknown fields are, would mislead."""
    if not isinstance(value, dict):
        return
    for name in ("images", "assets"):
        if value.get(name) is not None:
            raise InvalidRequest(f"Images are not supported by this server yet: send the request without `{name}`.")
    questions = value.get("questions")
    asked = questions.values() if isinstance(questions, dict) else ()
    if any(isinstance(question, dict) and question.get("type") == "box" for question in asked):
        raise InvalidRequest("Questions of type `box` need images, which this server does not support yet.")


def _json(body: bytes) -> Any:
    try:
        return strict_json.parse(body)
    except InvalidBody as error:
        raise InvalidBody(*(replace(issue, loc=_public(issue.loc)) for issue in error.issues)) from None


def _issue(error: ErrorDetails) -> Issue:
    kind = error["type"]
    sentence = error["msg"] if kind in _OURS else _SENTENCES.get(kind, "is not valid")
    ctx = error.get("ctx", {}) if kind in _OURS else {}
    return Issue(_public(("body", *error["loc"])), kind, sentence, tuple(ctx.items()))


def _public(loc: strict_json.Loc) -> strict_json.Loc:
    """As much of a place in a body as may be told: the contract's own names, positions, and question ids, which the
    contract wants. A key inside the state, or an option's, is the caller's text ("patient John Doe"), and errors end
    up in places where bodies do not."""
    match loc:
        case ("body", "questions", str() as id_, *inside):
            return ("body", "questions", id_, *_inside_a_question(inside))
        case ("body", field, *_) if field in _FIELDS:
            return ("body", field)
        case _:
            return ("body",)


def _inside_a_question(steps: list[str | int]) -> Sequence[str | int]:
    """[type,] field[, step], the last only below `criteria`, where it is a level's position or `true` or `false`.
    Pydantic puts the type in front, the JSON reader knows of none."""
    type_ = [step for step in steps[:1] if step in _TYPES]
    field, below = steps[len(type_) :][:1], steps[len(type_) + 1 :][:1]
    if not _QUESTION_FIELDS.issuperset(field):
        return type_
    if field != ["criteria"] or not all(isinstance(step, int) or step in ("true", "false") for step in below):
        below = []
    return [*type_, *field, *below]
