"""The GPUs that a llama-server binary says it sees (`--list-devices`)."""

from __future__ import annotations

import os
import re
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

LISTING_SECONDS = 60
"""The first look at a GPU after a boot can take a while."""

END_SECONDS = 5
"""From its last word to its end."""

LARGEST = 256 * 1024
"""Bytes that it may say. GPU libraries chatter before the list."""

LONGEST = 200
"""Characters of what is shown of it."""

HEAD = "Available devices:"
LINE = re.compile(r"^\s+([^\s:]+): (.*?)(?: \(([0-9]{1,9}) MiB, ([0-9]{1,9}) MiB free\))?$", re.MULTILINE)


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
    code, out, err = _asked(binary, environment)
    _, found, listing = out.partition(HEAD)
    if not found or code != 0:
        lines = [line.strip() for line in f"{out}\n{err}".splitlines() if line.strip()]
        raise CannotList(_shown(lines[-1]) if lines else f"it ended with exit code {code} and said nothing")
    return tuple(
        Device(_shown(name), _shown(about), int(total) if total else None, int(free) if free else None)
        for name, about, total, free in LINE.findall(listing)
    )


def _asked(binary: Path, environment: Mapping[str, str] | None) -> tuple[int, str, str]:
    """Its exit code, standard output and standard error. Whatever it started ends with it."""
    try:
        child = subprocess.Popen(
            [str(binary), "--list-devices"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=None if environment is None else dict(environment),
            start_new_session=True,
        )
    except (OSError, ValueError) as error:  # ValueError: a NUL in a variable or a path
        raise CannotList(getattr(error, "strerror", None) or str(error)) from error
    with child:
        try:
            out, err = _heard(child)
            child.wait(END_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise CannotList("it closed its output and does not end") from error
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
    return child.returncode, out.decode("utf-8", "replace"), err.decode("utf-8", "replace")


def _heard(child: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
    """Standard output and standard error to their ends."""
    assert child.stdout is not None and child.stderr is not None  # noqa: S101, PT018  # they are pipes
    heard = {child.stdout.fileno(): b"", child.stderr.fileno(): b""}
    deadline = time.monotonic() + LISTING_SECONDS
    with selectors.DefaultSelector() as waiting:
        for stream in heard:
            waiting.register(stream, selectors.EVENT_READ)
        while waiting.get_map():
            ready = waiting.select(max(0.0, deadline - time.monotonic()))
            if not ready:
                raise CannotList(f"it does not answer within {LISTING_SECONDS} s")
            for key, _ in ready:
                piece = os.read(key.fd, LARGEST)
                if not piece:
                    waiting.unregister(key.fd)
                heard[key.fd] += piece
            if sum(map(len, heard.values())) > LARGEST:
                raise CannotList(f"it says more than {LARGEST // 1024} KiB")
    return heard[child.stdout.fileno()], heard[child.stderr.fileno()]


def _shown(text: str) -> str:
    """For a terminal: no control characters, and not much of it."""
    plain = "".join(char if char.isprintable() else "?" for char in text)
    return plain if len(plain) <= LONGEST else plain[:LONGEST] + "..."


def has_gpu(binary: Path, environment: Mapping[str, str] | None = None) -> bool:
    """Whether it sees any. A build that cannot be asked counts as none: a small batch on a GPU is slow, a large one on
    a CPU holds slots for callers who have gone."""
    try:
        return bool(devices(binary, environment))
    except CannotList:
        return False


def folders(path: str | None) -> list[str]:
    """Of a variable such as LD_LIBRARY_PATH, each once, from the root. An empty element would be the folder that a
    program happens to be started in, and libraries are not taken from there."""
    return list(dict.fromkeys(os.path.abspath(folder) for folder in (path or "").split(os.pathsep) if folder))


def with_libraries(environment: Mapping[str, str], path: str | None) -> dict[str, str]:
    """`environment` with `path` in front of what LD_LIBRARY_PATH has."""
    made = dict(environment)
    if path:
        made["LD_LIBRARY_PATH"] = os.pathsep.join(
            dict.fromkeys([*folders(path), *folders(made.get("LD_LIBRARY_PATH"))])
        )
    return made
