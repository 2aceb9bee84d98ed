"""Names and passwords in URLs, which people put into variables and servers into what they say. They go no further."""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar, cast

T = TypeVar("T")

_USER = re.compile(r"(?P<scheme>\b[a-z][a-z0-9+.-]{0,31}:/{1,2})[^/\s?#]{1,1000}@", re.IGNORECASE)
"""One slash is what is left of two where a URL was taken for a path."""


def without_users(found: T) -> T:
    """The same value, without them in any of its texts."""
    return cast("T", _without(found))


def _without(found: Any) -> Any:
    if isinstance(found, str):
        return _USER.sub(r"\g<scheme>", found)
    if isinstance(found, tuple):
        return tuple(map(_without, found))
    if is_dataclass(found) and not isinstance(found, type):
        return type(found)(**{field.name: _without(getattr(found, field.name)) for field in fields(found)})
    return found
