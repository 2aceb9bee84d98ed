"""The images of a request as its JSON may hold them: as data URLs, and as assets with a placeholder each."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from jev_local.settings import MAX_IMAGES
from jev_local.wire.checks import Read, bounded, counted

MAX_PLACES = 32
"""Places in one request at which an image is shown, each of which costs as much as the image does. So there are never
more assets than this either: every one of them has a place."""

MAX_PLACEHOLDER = 256
"""Characters of a placeholder."""


class Asset(Read):
    """An image, shown wherever its placeholder stands."""

    type: Literal["image"]
    format: Annotated[Literal["png", "jpg", "jpeg"] | None, Field(description="Checked against the file.")] = None
    data_base64: Annotated[str | None, Field(description="The file in base64, without `data:`.")] = None
    part: Annotated[
        str | None,
        Field(description="In multipart/form-data: name of the part that is the file. `data_base64` is ignored then."),
    ] = None

    @model_validator(mode="after")
    def _has_a_file(self) -> Asset:
        if self.data_base64 is None and self.part is None:
            raise PydanticCustomError("no_file", "an asset needs data_base64, or in multipart/form-data part")
        return self


def _placeholders(value: object) -> object:
    for placeholder in value if isinstance(value, dict) else ():
        if not placeholder.strip():
            raise PydanticCustomError("blank_placeholder", "a placeholder cannot be empty or blank")
        if len(placeholder) > MAX_PLACEHOLDER:
            raise PydanticCustomError("long_placeholder", f"a placeholder has at most {MAX_PLACEHOLDER} characters")
    return value


Images: TypeAlias = Annotated[
    list[str] | None,
    Field(
        description="PNG or JPEG files as data URLs, 4 MiB each, shown with every question before the state. Only "
        "for models that see images.",
        json_schema_extra=bounded(maxItems=MAX_IMAGES),
    ),
    counted("image", list, MAX_IMAGES, least=0),
]

Assets: TypeAlias = Annotated[
    dict[str, Asset] | None,
    Field(
        description="Placeholder -> PNG or JPEG file, 16 MiB each and 32 MiB in all, shown wherever the placeholder "
        "stands in the state, in instructions or in criteria (not in names), each time anew.",
        json_schema_extra=bounded(
            minProperties=1,
            maxProperties=MAX_PLACES,
            propertyNames={"type": "string", "minLength": 1, "maxLength": MAX_PLACEHOLDER},
        ),
    ),
    BeforeValidator(_placeholders),
    counted("asset", dict, MAX_PLACES),
]
