"""One real decision through the API, and how fast its prompt was read."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping

from jev_local.client import BadReply, Client, ClientError, Refused, TimedOut
from jev_local.doctor.facts import Speed
from jev_local.received import Received, ReceivedNoul
from jev_local.wire.headers import PROCESSED_TOKENS, TIMING

WORDS = 300
QUESTION = "Does this text speak of the weather?"
ID = "weather"

_WORDS = (
    "apple river stone cloud paper green window letter garden summer market silver forest bridge winter yellow "
    "candle basket doctor museum orange pencil rocket school teacher turtle valley village water wheel morning "
    "evening butter carpet copper desert engine farmer ferry guitar hammer island jacket kettle ladder mirror "
    "needle ocean parrot queen ribbon saddle ticket uncle violin wagon yard zebra"
)

_BUSY, _NOT_READY = 529, 503
_NO_ENTRY = (401, 403)


def request() -> bytes:
    """One question about words in a random order: nobody has asked it before, and of one question nothing is kept."""
    words = _WORDS.split()
    state = " ".join(secrets.choice(words) for _ in range(WORDS))
    return json.dumps({"state": state, "questions": {ID: {"type": "noul", "instructions": QUESTION}}}).encode()


def measure(client: Client) -> Speed:
    """Ask, and say how it went. Whatever the server says, the key is not in it."""
    try:
        return judged(client.ask(request()))
    except Refused as error:
        return refused(error)
    except TimedOut as error:
        return Speed("too slow", error.message)
    except BadReply as error:
        return Speed("bad answer", error.message)
    except ClientError as error:
        return Speed("unreachable", error.message)


def judged(reply: Received) -> Speed:
    """Whether it is an answer to `request`, and what its headers tell."""
    answer = reply.answers.get(ID)
    if not isinstance(answer, ReceivedNoul) or not 0.0 <= answer.noul <= 1.0:
        return Speed("bad answer", "What came back is no answer to the question.", seconds=reply.seconds)
    tokens, seconds = prefill(reply.headers)
    return Speed(
        state="answered",
        says="a decision was made",
        seconds=reply.seconds,
        tokens=tokens,
        tokens_per_second=tokens / seconds if tokens and seconds else None,
        probability=answer.noul,
    )


def refused(error: Refused) -> Speed:
    says = f"{error.status}: {'; '.join(error.reasons[:3])}"
    if error.status == _BUSY:
        return Speed("busy", says)
    if error.status == _NOT_READY:
        return Speed("not ready", says)
    return Speed("wrong key" if error.status in _NO_ENTRY else "refused", says)


def prefill(headers: Mapping[str, str]) -> tuple[int | None, float | None]:
    """Tokens that were evaluated, and the seconds that took: reading the state, then the question and one token."""
    text = headers.get(PROCESSED_TOKENS.lower(), "")
    tokens = int(text) if re.fullmatch(r"[0-9]{1,9}", text) else None
    stages = dict(re.findall(r"(\w+);dur=([0-9]{1,12}(?:\.[0-9]{1,12})?)", headers.get(TIMING.lower(), "")))
    if "decode" not in stages:
        return tokens, None
    return tokens, (float(stages.get("prefix", 0)) + float(stages["decode"])) / 1000
