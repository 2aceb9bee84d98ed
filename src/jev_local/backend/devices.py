"""The GPUs that a llama-server binary says it sees (`--list-devices`)."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

LISTING_SECONDS = 60
"""The first look at a GPU after a boot can take a while."""

HEAD = "Available devices:"
LINE = re.compile(r"^\s+([^\s:]+): (.*?)(?: \((\d+) MiB, (\d+) MiB free\))?$", re.MULTILINE)


class CannotList(Exception):
    """A binary that does not run here, with its own reason."""


@dataclass(frozen=True, slots=True)
class Device:
    """`name` is what `--device` takes, such as CUDA0. Memory in MiB; None where it is not told."""

    name: str
    about: str
    total: int | None
    free: int | None


def devices(binary: Path, environment: Mapping[str, str] | None = None) -> tuple[Device, ...]:
    """All of them; a processor is none. CannotList says why the binary could not be asked."""
    try:
        asked = subprocess.run(
            [str(binary), "--list-devices"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LISTING_SECONDS,
            check=False,
            env=None if environment is None else dict(environment),
        )
    except subprocess.TimeoutExpired as error:
        raise CannotList(f"it does not answer within {LISTING_SECONDS} s") from error
    except OSError as error:
        raise CannotList(error.strerror or str(error)) from error
    _, found, listing = asked.stdout.partition(HEAD)
    if not found or asked.returncode != 0:
        raise CannotList(_reason(asked))
    return tuple(
        Device(name, about, int(total) if total else None, int(free) if free else None)
        for name, about, total, free in LINE.findall(listing)
    )


def _reason(asked: subprocess.CompletedProcess[str]) -> str:
    said = [line.strip() for line in f"{asked.stdout}\n{asked.stderr}".splitlines() if line.strip()]
    return said[-1] if said else f"it ended with exit code {asked.returncode} and said nothing"


def has_gpu(binary: Path, environment: Mapping[str, str] | None = None) -> bool:
    """Whether it sees any. A build that cannot be asked counts as none: a small batch on a GPU is slow, a large one on
    a CPU holds slots for callers who have gone."""
    try:
        return bool(devices(binary, environment))
    except CannotList:
        return False


def with_libraries(environment: Mapping[str, str], path: str | None) -> dict[str, str]:
    """`environment` with `path` in front of what LD_LIBRARY_PATH has, each folder once."""
    made = dict(environment)
    if path:
        before = [folder for folder in made.get("LD_LIBRARY_PATH", "").split(os.pathsep) if folder]
        made["LD_LIBRARY_PATH"] = os.pathsep.join(dict.fromkeys([*path.split(os.pathsep), *before]))
    return made
