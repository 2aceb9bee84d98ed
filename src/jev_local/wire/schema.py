"""The contract as pydantic models: what a request may hold, what a reply and an error look like.

They are the server's: `intake` checks requests with them and turns them into `core.questions`, `reply` builds
replies of them, and the OpenAPI document is made from them and from `about`. Unknown fields are ignored in requests;
replies say that there may be more than is listed. The client reads with a check of its own, see `jev_local.received`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from jev_local.core.questions import MAX_LEVELS, MAX_OPTIONS
from jev_local.wire.attached import Assets, Images
from jev_local.wire.checks import Read, counted

MAX_QUESTIONS = 1000
"""Questions in one request. Our own cap: TypeSafe documents none, and was seen to answer this many."""


def _text(value: object) -> object:
    if isinstance(value, (str, dict, list)):
        return value
    raise PydanticCustomError("text_type", "has to be a string, an object or an array")


Text = Annotated[
    str | dict[str, Any] | list[Any],
    # A plain check instead of pydantic's own, which would copy the whole of a large state.
    PlainValidator(_text),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "object"}, {"type": "array", "items": {}}]}),
]
"""Words for the model. Objects and arrays are shown to it as JSON."""


class NoulCriteria(Read):
    """What counts as yes and what as no; one of them is enough."""

    true: Text | None = None
    false: Text | None = None


def _plain_criterion(value: object) -> object:
    # Not in TypeSafe's schema, but systemone-client sends it: one text that says what counts as yes.
    return {"true": value} if isinstance(value, str) else value


def _admit_plain_criterion(schema: dict[str, Any]) -> None:
    schema["anyOf"].append({"type": "string"})


class NoulQuestion(Read):
    """A yes/no question, answered with the probability of yes. It needs instructions or a criterion."""

    type: Literal["noul"]
    instructions: Text | None = None
    criteria: Annotated[
        NoulCriteria | None,
        BeforeValidator(_plain_criterion),
        Field(json_schema_extra=_admit_plain_criterion),
    ] = None

    @model_validator(mode="after")
    def _asks_something(self) -> NoulQuestion:
        # Ids are never shown to the model, so without any words the answer would be about nothing.
        words = (self.instructions, self.criteria and self.criteria.true, self.criteria and self.criteria.false)
        if all(_blank(text) for text in words):
            raise PydanticCustomError("nothing_asked", "a noul needs instructions or a criterion")
        return self


class ChoiceQuestion(Read):
    """One of 1 to 255 options, given as a map from its name to a description or null."""

    type: Literal["choice"]
    instructions: Text | None = None
    criteria: Annotated[
        dict[str, Text | None],
        Field(json_schema_extra={"minProperties": 1, "maxProperties": MAX_OPTIONS}),
        counted("option", dict, MAX_OPTIONS),
    ]

    @model_validator(mode="after")
    def _every_option_says_something(self) -> ChoiceQuestion:
        if "" in self.criteria and _blank(self.criteria[""]):
            raise PydanticCustomError("blank_option", "an option without a name needs a description")
        return self


class ScoreQuestion(Read):
    """A position on a scale of 1 to 10 levels, the lowest first."""

    type: Literal["score"]
    instructions: Text | None = None
    criteria: Annotated[
        list[Text],
        Field(json_schema_extra={"minItems": 1, "maxItems": MAX_LEVELS}),
        counted("level", list, MAX_LEVELS),
    ]


AnyQuestion = Annotated[NoulQuestion | ChoiceQuestion | ScoreQuestion, Field(discriminator="type")]


def _named(value: object) -> object:
    if isinstance(value, dict) and "" in value:
        raise PydanticCustomError("blank_id", "a question's id cannot be empty")
    return value


class SystemOneRequest(Read):
    """Questions about one state."""

    state: Annotated[Text, Field(description="What the questions are about: a string, an object or an array.")]
    questions: Annotated[
        dict[str, AnyQuestion],
        Field(
            description="Question id -> question. The model never sees the ids.",
            json_schema_extra={
                "minProperties": 1,
                "maxProperties": MAX_QUESTIONS,
                "propertyNames": {"type": "string", "minLength": 1},
            },
        ),
        BeforeValidator(_named),
        counted("question", dict, MAX_QUESTIONS),
    ]
    images: Images = None
    assets: Assets = None
    model: Annotated[
        str | None, Field(description="jev-latest, jev-preview, jev-N.N.N, the local model's own name, or nothing.")
    ] = None
    x_details: Annotated[
        bool | None,
        Field(strict=True, description="true adds x_candidate_mass and x_warnings to every answer."),
    ] = None


def _blank(text: object) -> bool:
    """Nothing that a reader could read: null, white space, an empty object or array."""
    return not text.strip() if isinstance(text, str) else not text


class Told(BaseModel):
    """What this service says. There may be more in it than is listed."""

    model_config = ConfigDict(extra="allow", frozen=True)


Mass = Annotated[
    float | None,
    Field(description="On request: the share of the model's probability, 0 to 1, that fell on the options."),
]
Codes = Annotated[
    list[str] | None,
    Field(
        description="On request: reasons to doubt the answer. low-mass: the model gave the options little of its "
        "probability, it wanted to say something else. wants-to-think: it would rather have begun a chain of thought."
    ),
]


class NoulReply(Told):
    type: Literal["noul"] = "noul"
    noul: Annotated[float, Field(description="Probability of yes, 0 to 1.")]
    x_candidate_mass: Mass = None
    x_warnings: Codes = None


class ChoiceReply(Told):
    type: Literal["choice"] = "choice"
    choice: Annotated[str, Field(description="The most probable option.")]
    confidence: Annotated[float, Field(description="0 to 1, by TypeSafe's formula.")]
    probabilities: Annotated[dict[str, float], Field(description="Option -> probability; they sum to 1.")]
    x_candidate_mass: Mass = None
    x_warnings: Codes = None


class ScoreReply(Told):
    type: Literal["score"] = "score"
    score: Annotated[float, Field(description="Expected level, 0 to n - 1, not rounded.")]
    confidence: Annotated[float, Field(description="0 to 1, by TypeSafe's formula.")]
    legend: Annotated[dict[str, Text], Field(description='"0" to "n-1" -> the level as it was sent.')]
    probabilities: Annotated[dict[str, float], Field(description='"0" to "n-1" -> probability; they sum to 1.')]
    x_candidate_mass: Mass = None
    x_warnings: Codes = None


class UsageReply(Told):
    input_tokens: Annotated[int, Field(description="Prompt tokens over all questions, reused ones included.")] = 0
    output_tokens: Annotated[int, Field(description="Tokens generated.")] = 0


AnyReply = Annotated[NoulReply | ChoiceReply | ScoreReply, Field(discriminator="type")]


class SystemOneReply(Told):
    """The answers, one for each question id."""

    model: Annotated[str, Field(description="Name of the local model that answered.")]
    answers: dict[str, AnyReply]
    usage: UsageReply


class ErrorDetail(Told):
    error_type: str
    message: str


class ErrorReply(Told):
    """Every error that is not about the body."""

    detail: ErrorDetail


class IssueDetail(Told):
    type: str
    loc: list[str | int]
    msg: str


class InvalidBodyReply(Told):
    """What is wrong with a body, and where."""

    detail: list[IssueDetail]
