"""What the benchmark of the image cache asks: choice questions and one picture, read before any clock runs."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image, UnidentifiedImageError

from jev_local import inputs
from jev_local.inputs import InputError


@dataclass(frozen=True, slots=True)
class Question:
    """`body` is sent as it is. `count` questions; `about` is what the figures depend on."""

    body: bytes
    count: int
    about: dict[str, Any]


def read(source: Path, image: Path) -> Question:
    """InputError says, in one line, what cannot be measured with."""
    request = inputs.read(str(source))
    count = _choices(request.document, source)
    shown = inputs.with_images(request, [str(image)])
    try:
        with Image.open(image) as opened:
            width, height = opened.size
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise InputError(f"{image} cannot be read as a picture: {error}") from error
    content = image.read_bytes()
    about = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest(), "width": width, "height": height}
    asked = {"questions": count, "sha256": hashlib.sha256(request.body).hexdigest()}
    return Question(shown.body, count, {"image": about, "input": asked})


def _choices(document: object, source: Path) -> int:
    """How many questions there are. Only of a choice is it said here what its probabilities differ by."""
    questions = document.get("questions") if isinstance(document, dict) else None
    if not isinstance(questions, dict) or not questions:
        raise InputError(f"{source} has no questions")
    assert isinstance(document, dict)
    for name, question in questions.items():
        kind = question.get("type") if isinstance(question, dict) else None
        if kind != "choice":
            raise InputError(f"{source}: question {name!r} is a {kind}, and this takes choice questions only")
    if document.get("assets"):
        raise InputError(f"{source} brings assets of its own: take them out, the picture comes from --image")
    return len(questions)
