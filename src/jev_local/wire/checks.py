"""What the models of requests have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import BaseModel, BeforeValidator, ConfigDict
from pydantic_core import PydanticCustomError


class Read(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


def counted(what: str, kind: type, most: int, *, least: int = 1) -> BeforeValidator:
    """Refuses a container by its size before anything in it is looked at."""

    def check(value: object) -> object:
        if not isinstance(value, kind):
            return value  # the field's own type says what is wrong
        count = len(value)  # type: ignore[arg-type]
        if count < least:
            raise PydanticCustomError("too_short", f"at least 1 {what} is needed", {"min_length": 1})
        if count > most:
            raise PydanticCustomError("too_long", f"at most {most} {what}s, got {count}", {"max_length": most})
        return value

    return BeforeValidator(check)


def bounded(**bounds: Any) -> Callable[[dict[str, Any]], None]:
    """Bounds for the schema of a field that may be null."""
    return lambda schema: schema["anyOf"][0].update(bounds)
