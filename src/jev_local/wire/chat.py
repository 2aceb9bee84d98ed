"""Requests that are relayed to llama-server: `/v1/chat/completions` and `/v1/completions`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from jev_local.core.chats import LIMITS, Chat, Endpoint
from jev_local.errors import InvalidBody, Issue
from jev_local.wire import strict_json
from jev_local.wire.chat_fields import check_fields, is_known
from jev_local.wire.chat_messages import check_messages, check_prompt, check_tools
from jev_local.wire.chat_schemas import check_schemas


def read_relayed(body: bytes, endpoint: Endpoint) -> Chat:
    """The request in `body`, JSON in UTF-8. Raises InvalidBody (anything wrong with it) and InvalidRequest (sound, but
    not relayed).

    What is checked is what llama-server would not survive, or would do to others, besides what it has to be told for
    sure. Fields that neither of us knows go through: it leaves them alone.
    """
    document = _object(body)
    check_fields(document)
    (check_messages if endpoint == "chat" else check_prompt)(document)
    check_tools(document)
    check_schemas(document)
    return Chat(
        endpoint,
        document,
        model=document.get("model"),
        stream=bool(document.get("stream")),
        wants_progress=bool(document.get("return_progress")),
        max_tokens=_limit(document),
        cache=document.get("cache_prompt") is not False,
    )


def _object(body: bytes) -> dict[str, Any]:
    try:
        value = strict_json.parse(body)
    except InvalidBody as error:
        raise InvalidBody(*(replace(issue, loc=_public(issue.loc)) for issue in error.issues)) from None
    if not isinstance(value, dict):
        raise InvalidBody(Issue(("body",), "dict_type", "has to be an object"))
    return value


def _public(loc: strict_json.Loc) -> strict_json.Loc:
    """As much of a place as may be told: the contract's own names and positions. Other keys are the caller's text."""
    match loc:
        case ("body", "messages" | "tools" | "prompt" as name, int() as index, *_):
            return ("body", name, index)
        case ("body", str() as name, *_) if is_known(name):
            return ("body", name)
        case _:
            return ("body",)


def _limit(document: Mapping[str, Any]) -> int | None:
    """llama-server takes the first spelling that is not null."""
    limit = next((document[name] for name in LIMITS if document.get(name) is not None), None)
    return None if limit is None or limit < 0 else limit
