"""JSON schemas of relayed requests: of the answer, and of what tools are given.

llama-server makes a grammar of a schema and follows every way to read what is being written, between two tokens, while
all slots wait. A schema of a kilobyte can have more ways than will ever be followed. So what is counted here is what a
schema comes to with its references put in, and not what it takes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from jev_local.errors import InvalidRequest
from jev_local.wire.chat_fields import broken

MAX_BYTES = 256 * 1024
"""Of all schemas of a request, as compact JSON."""

MAX_OBJECTS = 4000
"""JSON objects of all schemas of a request, counted as often as they are referred to."""

MAX_OPTIONAL = 64
"""Properties of one object that may be left out. The grammar grows with their square."""

MAX_ALTERNATIVES = 1000
"""Entries of all `enum`, `anyOf`, `oneOf`, `allOf` and lists of types of a request, counted the same way."""

MAX_DEPTH = 128

MAX_NAME = 256
"""Characters of a property's name, each of which is one more level of parentheses in the grammar."""

_ALTERNATIVES = ("enum", "anyOf", "oneOf", "allOf", "type")


def check_schemas(document: Mapping[str, Any]) -> None:
    """Raises InvalidBody and InvalidRequest."""
    schemas = list(_schemas(document))
    if sum(len(json.dumps(schema, ensure_ascii=False).encode()) for schema in schemas) > MAX_BYTES:
        raise InvalidRequest(f"The JSON schemas of a request may have {MAX_BYTES // 1024} KiB in all.")
    _require(_sum(_Walk(schema).size(schema) for schema in schemas))


def _schemas(document: Mapping[str, Any]) -> Iterator[Any]:
    wanted = document.get("response_format")
    if wanted is not None:
        if not isinstance(wanted, dict) or not isinstance(wanted.get("type", ""), str):
            raise broken("has to be an object with a type", "response_format", kind="type_error")
        yield wanted.get("schema")
        wrapped = wanted.get("json_schema")
        yield wrapped.get("schema") if isinstance(wrapped, dict) else None
    yield document.get("json_schema")
    for tool in document.get("tools") or ():
        yield tool["function"].get("parameters")


@dataclass(slots=True)
class _Walk:
    """Through one schema, its references included. Every object in it is taken for a schema, also where it is only a
    default: none of the limits is near what people write."""

    root: Any
    counted: dict[str, tuple[int, int] | None] = field(default_factory=dict)
    """A reference -> what it comes to, None while that is being found out."""

    def size(self, value: Any, depth: int = 0) -> tuple[int, int]:
        """Objects and alternatives in `value`."""
        if depth > MAX_DEPTH:
            raise InvalidRequest(f"A JSON schema may be nested {MAX_DEPTH} deep, its references included.")
        if isinstance(value, list):
            return _sum(self.size(inner, depth + 1) for inner in value)
        if not isinstance(value, dict):
            return 0, 0
        _check(value)
        own = 1, sum(len(value[name]) for name in _ALTERNATIVES if isinstance(value.get(name), list))
        found = _sum([own, *(self.size(inner, depth + 1) for inner in value.values())])
        if isinstance(value.get("$ref"), str):
            found = _sum([found, self._target(value["$ref"], depth + 1)])
        _require(found)
        return found

    def _target(self, ref: str, depth: int) -> tuple[int, int]:
        if ref not in self.counted:
            self.counted[ref] = None
            self.counted[ref] = self.size(self._resolved(ref), depth)
        found = self.counted[ref]
        if found is None:
            raise InvalidRequest("A JSON schema that contains itself is not relayed.")
        return found

    def _resolved(self, ref: str) -> Any:
        value = self.root
        for step in ref.removeprefix("#").split("/")[1:]:
            value = _member(value, step.replace("~1", "/").replace("~0", "~"))
        if not ref.startswith("#") or not isinstance(value, dict):
            raise InvalidRequest("A JSON schema refers to what is not in it. Put what is meant into its `$defs`.")
        return value


def _member(value: Any, name: str) -> Any:
    if isinstance(value, list) and name.isascii() and name.isdecimal():
        return value[int(name[:9])] if int(name[:9]) < len(value) else None
    return value.get(name) if isinstance(value, dict) else None


def _check(schema: Mapping[str, Any]) -> None:
    if isinstance(schema.get("pattern"), str):
        # `^([a-z]?){1000}z$` stops the inference server for good.
        raise InvalidRequest("`pattern` in a JSON schema is not relayed: some short ones stop the inference server.")
    properties = schema.get("properties")
    if isinstance(properties, dict):
        if any(len(name) > MAX_NAME for name in properties):
            raise InvalidRequest(f"A property of a JSON schema may have a name of {MAX_NAME} characters.")
        required = schema.get("required")
        needed = {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()
        if len(properties.keys() - needed) > MAX_OPTIONAL:
            raise InvalidRequest(
                f"An object of a JSON schema may have {MAX_OPTIONAL} properties that are not required."
            )


def _require(size: tuple[int, int]) -> None:
    objects, alternatives = size
    if objects > MAX_OBJECTS or alternatives > MAX_ALTERNATIVES:
        raise InvalidRequest(
            f"The JSON schemas of a request may come to {MAX_OBJECTS} objects and {MAX_ALTERNATIVES} alternatives in "
            "all, each counted wherever it is referred to."
        )


def _sum(sizes: Iterable[tuple[int, int]]) -> tuple[int, int]:
    counted = list(sizes)
    return sum(objects for objects, _ in counted), sum(alternatives for _, alternatives in counted)
