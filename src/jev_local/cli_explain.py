"""`systemone explain`: why one request did not reuse what another had read, for people."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from jev_local import inputs
from jev_local.explained import Explained, ExplainedPlace
from jev_local.safe_text import clean, is_utf

FIELDS = ("questions", "messages", "prompt")
"""What a request of each form has."""

KINDS = {
    "date-time": "a date or time",
    "id": "a UUID or another id",
    "number": "a number",
    "user-name": "a user name",
    "white-space": "white space",
    "key-order": "the order of JSON members",
    "template": "another template, system text or tools",
    "model": "another model",
    "text": "text",
    "question": "the part that is meant to change",
}
"""What to call what stands where two texts part."""

ALIKE = ("white-space", "key-order")
"""What is rather written in one way than moved."""

_CONTROLS = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_RUN = re.compile(r"^ +| {2,}| +$")


def pair(files: Sequence[str]) -> tuple[inputs.Request, inputs.Request]:
    """The requests in two files. Raises InputError."""
    if list(files).count(inputs.STDIN) > 1:
        raise inputs.InputError("both requests cannot be read from standard input")
    a, b = (_request(file) for file in files)
    return a, b


def _request(file: str) -> inputs.Request:
    request = inputs.read(file)
    if not (isinstance(request.document, dict) and any(field in request.document for field in FIELDS)):
        name = "standard input" if file == inputs.STDIN else file
        raise inputs.InputError(f"{name} is no request: it has none of {', '.join(FIELDS)}")
    return request


def text(found: Explained, encoding: str) -> str:
    """`found` in lines, writable in `encoding`. Control characters and runs of spaces in the requests' texts show."""
    lines = [
        ("Agree", f"{found.agree:,} tokens, of {found.a.tokens:,} (a) and {found.b.tokens:,} (b)"),
        ("Reusable", f"{found.a.reusable:,} (a) and {found.b.reusable:,} (b){_what_changes(found)}"),
    ]
    if found.place is None:
        lines.append(("Parted", "nowhere: the prompts are the same"))
    else:
        lines += _place(found.place, encoding)
    lines += [(_first("If moved", i), line) for i, line in enumerate(_moves(found, encoding))]
    lines += [(_first("Checks", i), line) for i, line in enumerate(_checks(found, encoding))]
    lines.append(("Advice", clean(found.advice, encoding)))
    width = max(len(name) for name, _ in lines)
    return "".join(f"{name:<{width}}  {line}".rstrip() + "\n" for name, line in lines)


def _what_changes(found: Explained) -> str:
    forms = {found.a.form, found.b.form}
    if forms == {"decision"}:
        return ", before the questions"
    return ", before the last user message" if forms == {"chat"} else ""


def _place(place: ExplainedPlace, encoding: str) -> Iterator[tuple[str, str]]:
    yield "Parted", f"by {_kind(place.kind, encoding)}"
    yield "  behind", shown(place.before, encoding)
    yield "  a", shown(place.a, encoding)
    yield "  b", shown(place.b, encoding)


def _moves(found: Explained, encoding: str) -> Iterator[str]:
    for move in found.moves:
        values = f"{shown(move.a, encoding)} / {shown(move.b, encoding)}"
        kind = _kind(move.kind, encoding)
        how = f"with {kind} the same" if move.kind in ALIKE else f"without {kind} there"
        yield f"{move.agree:,} tokens would agree {how} ({values})"


def _checks(found: Explained, encoding: str) -> Iterator[str]:
    names = [clean(check.check, encoding) for check in found.checks]
    outcomes = [clean(check.outcome, encoding) for check in found.checks]
    for name, outcome, check in zip(names, outcomes, found.checks, strict=True):
        says = clean(check.says, encoding)
        yield f"{name:<{max(map(len, names))}}  {outcome:<{max(map(len, outcomes))}}  {says}"


def _kind(kind: str, encoding: str) -> str:
    return KINDS.get(kind) or clean(kind, encoding)


def _first(name: str, index: int) -> str:
    return "" if index else name


def shown(text: str, encoding: str) -> str:
    """`text` on one line with nothing in it hidden: what two texts part by may be a space."""
    dot = "·" if is_utf(encoding) else "_"
    for char, written in _CONTROLS.items():
        text = text.replace(char, written)
    text = "".join(char if char == " " or not char.isspace() else ascii(char)[1:-1] for char in text)
    return clean(_RUN.sub(lambda run: dot * len(run[0]), text), encoding)
