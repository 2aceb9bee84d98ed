"""From the JSON value of a request to the questions that the engine answers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from jev_local.core.questions import Choice, Noul, Option, Question, Score
from jev_local.errors import BodyTooLarge, InvalidBody, InvalidRequest, Issue, UnknownModel
from jev_local.wire import strict_json
from jev_local.wire.attached import Asset
from jev_local.wire.images import Marker, Uploads, assets, data_urls
from jev_local.wire.multipart import Part
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
    "literal_error": "has to be image as a type, and png, jpg or jpeg as a format",
}
_OURS = frozenset(("text_type", "too_short", "too_long", "nothing_asked", "blank_option", "blank_id")) | {
    "no_file",
    "blank_placeholder",
    "long_placeholder",
}


@dataclass(frozen=True, slots=True)
class Intake:
    """A checked request. `legends` holds the levels of each score as they were sent, by question id;
    `model` is the name asked for, None where any will do. `uploads`: the images, whose files nobody has looked into
    yet; their marks stand in the state and in the questions."""

    state: str
    questions: tuple[Question, ...]
    legends: dict[str, tuple[Any, ...]]
    model: str | None = None
    details: bool = False
    uploads: Uploads = field(default_factory=Uploads)


def read_request(
    body: bytes, *, parts: Mapping[str, Part] | None = None, oversized: BodyTooLarge | None = None
) -> Intake:
    """The request in `body`. `parts`: the files beside it in a form. `oversized` is raised unless there are assets.

    Raises InvalidBody (anything wrong with it) and InvalidRequest (sound, but not answerable here)."""
    value = _json(body)
    if oversized and not (isinstance(value, dict) and value.get("assets")):
        raise oversized
    _refuse_boxes(value)
    try:
        request = SystemOneRequest.model_validate(value)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)
        # Without `from None` the values that pydantic keeps would travel along in the traceback.
        raise InvalidBody(*(_issue(each, value) for each in found[:MAX_ISSUES])) from None
    leading = data_urls(request.images)
    marker = Marker(assets(request.assets, parts), leading=len(leading))
    state = words(marker.state(request.state))
    questions = tuple(_question(id_, asked, marker) for id_, asked in request.questions.items())
    marker.check_all_placed()
    return Intake(
        state=state,
        questions=questions,
        legends={id_: tuple(q.criteria) for id_, q in request.questions.items() if isinstance(q, ScoreQuestion)},
        model=request.model,
        details=bool(request.x_details),
        uploads=Uploads(leading, marker.placed),
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


def _question(id_: str, asked: NoulQuestion | ChoiceQuestion | ScoreQuestion, marker: Marker) -> Question:
    def marked(text: str | dict[str, Any] | list[Any] | None) -> str | None:
        # White space alone says as little as null, and must not end up in a prompt as a heading with nothing under it.
        return None if text is None or (isinstance(text, str) and not text.strip()) else words(marker.text(text))

    instructions = marked(asked.instructions)
    match asked:
        case NoulQuestion():
            criteria = asked.criteria or NoulCriteria()
            return Noul(id_, instructions, when_true=marked(criteria.true), when_false=marked(criteria.false))
        case ChoiceQuestion():
            return Choice(id_, instructions, tuple(Option(key, marked(text)) for key, text in asked.criteria.items()))
        case ScoreQuestion():
            return Score(id_, instructions, tuple(words(marker.text(level)) for level in asked.criteria))


def _refuse_boxes(value: Any) -> None:
    questions = value.get("questions") if isinstance(value, dict) else None
    asked = questions.values() if isinstance(questions, dict) else ()
    if any(isinstance(question, dict) and question.get("type") == "box" for question in asked):
        raise InvalidRequest(
            "Questions of type `box` are not supported: this server does not locate things in images. Ask a noul, a "
            "choice or a score."
        )


def _json(body: bytes) -> Any:
    try:
        return strict_json.parse(body)
    except InvalidBody as error:
        raise InvalidBody(*(replace(issue, loc=_public(issue.loc)) for issue in error.issues)) from None


def _issue(error: ErrorDetails, value: Any) -> Issue:
    kind, loc = error["type"], error["loc"]
    if loc[:1] == ("assets",) and loc[1:]:
        # Placeholders are the caller's text as well. Which asset it is, its position tells.
        loc = ("assets", list(value["assets"]).index(loc[1]), *loc[2:])
    sentence = error["msg"] if kind in _OURS else _SENTENCES.get(kind, "is not valid")
    ctx = error.get("ctx", {}) if kind in _OURS else {}
    return Issue(_public(("body", *loc)), kind, sentence, tuple(ctx.items()))


def _public(loc: strict_json.Loc) -> strict_json.Loc:
    """As much of a place in a body as may be told: the contract's own names, positions, and question ids, which the
    contract wants. A key inside the state, or an option's, is the caller's text ("patient John Doe"), and errors end
    up in places where bodies do not."""
    match loc:
        case ("body", "questions", str() as id_, *inside):
            return ("body", "questions", id_, *_inside_a_question(inside))
        case ("body", "images" | "assets" as field, int() as index, *inside):
            return ("body", field, index, *(step for step in inside[:1] if step in Asset.model_fields))
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
