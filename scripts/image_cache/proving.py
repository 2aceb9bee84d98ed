"""What the cache has to do, tried on real servers: counts of its log lines, and answers against the unpatched build."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from image_cache import pictures
from image_cache.counted import Answer, Counts, Models, Server, launch, running
from jev_local.launch.process import stop
from jev_local.launch.progress import say

A, B = pictures.noise(96, 64, 1), pictures.noise(96, 64, 2)
RED, BLUE = pictures.plain(96, 64, (255, 0, 0)), pictures.plain(96, 64, (0, 0, 255))
TILED = pictures.noise(1024, 1024, 3)
LARGE = pictures.noise(512, 512, 4)
NAMES = {
    A: "picture A (96x64)",
    B: "picture B (96x64)",
    RED: "plain red (96x64)",
    BLUE: "plain blue (96x64)",
    TILED: "1024x1024: 4 tiles and a thumbnail",
    LARGE: "512x512, 3 MiB of pixels",
}

END_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Rig:
    """Two builds of llama-server, models for both, and a folder for what they log."""

    patched: Path
    stock: Path
    models: Models
    logs: Path

    def started(self, name: str, limit: str | None = None, *, stock: bool = False) -> AbstractContextManager[Server]:
        return running(self.stock if stock else self.patched, self.models, self.logs / f"{name}.log", limit)


@dataclass(frozen=True, slots=True)
class Step:
    """Four questions about a picture, and what the cache has to make of them."""

    picture: bytes
    misses: int
    hits: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. `wrong` is empty when it came as it had to."""

    limit: str
    sent: str
    misses: str
    hits: str
    result: str
    wrong: str = ""

    def __str__(self) -> str:
        cells = (self.limit, self.sent, self.misses, self.hits, self.wrong or self.result)
        return f"| {' | '.join(cells)} |"


SCENARIOS: dict[str | None, tuple[Step, ...]] = {
    None: (
        Step(A, 1, 3),
        Step(A, 0, 4, "again"),
        Step(B, 1, 3),
        Step(TILED, 5, 15),
        Step(TILED, 0, 20, "again"),
        Step(RED, 1, 3),
        Step(BLUE, 1, 3),
        Step(RED, 0, 4, "again"),
        Step(A, 0, 4, "again"),
    ),
    "0": (Step(A, 0, 0), Step(A, 0, 0, "again"), Step(TILED, 0, 0), Step(TILED, 0, 0, "again")),
    "1": (Step(A, 1, 3), Step(LARGE, 4, 0, "larger than the limit"), Step(A, 0, 4, "again: nothing went for that")),
    "8": (Step(A, 1, 3), Step(A, 0, 4, "again"), Step(TILED, 20, 0, "more than fits"), Step(TILED, 20, 0, "again")),
    "16": (
        Step(A, 1, 3),
        Step(B, 1, 3),
        Step(TILED, 5, 15),
        Step(TILED, 0, 20, "again"),
        Step(A, 1, 3, "again: it had to go for the tiles"),
    ),
}

BAD_LIMITS = ("abc", "-1", "4097", "1.5", "")


def rows(rig: Rig) -> list[Row]:
    found: list[Row] = []
    for limit, steps in SCENARIOS.items():
        say(f"JEV_IMAGE_CACHE_MIB {'unset' if limit is None else limit}")
        found += _scenario(rig, limit, steps)
    say("Four clients at once, bad limits, two contexts")
    found.append(_clients_at_once(rig))
    found += [_refusal(rig, limit) for limit in BAD_LIMITS]
    return found


def _scenario(rig: Rig, limit: str | None, steps: Sequence[Step]) -> list[Row]:
    """The same requests, in the same order, to both builds."""
    with rig.started("stock", limit, stock=True) as server:
        expected = [server.answers(step.picture) for step in steps]
        silent = server.counts() == Counts(0, 0)
    found: list[Row] = []
    given: dict[bytes, list[Answer]] = {}
    with rig.started("patched", limit) as server:
        for step, wanted in zip(steps, expected, strict=True):
            answers, counts = _counted(server, step)
            wrong = _wrong(step, counts, equal=answers == wanted)
            if not silent:
                wrong = wrong or "WRONG: the stock build has a cache"
            if any(other == answers for picture, other in given.items() if picture != step.picture):
                wrong = wrong or "WRONG: the answers of another picture"
            given[step.picture] = answers
            sent = ", ".join(filter(None, (NAMES[step.picture], step.note)))
            found.append(_row(limit, sent, counts, "equal to the last bit", wrong))
    return found


def _counted(server: Server, step: Step) -> tuple[list[Answer], Counts]:
    before = server.counts()
    answers = server.answers(step.picture)
    return answers, server.counts() - before


def _wrong(step: Step, counts: Counts, *, equal: bool) -> str:
    if counts != Counts(step.misses, step.hits):
        return f"WRONG: {step.misses} misses and {step.hits} hits were to be expected"
    return "" if equal else "WRONG: other answers than the stock build's"


def _clients_at_once(rig: Rig) -> Row:
    """Their answers are not compared: how four prompts fall into one batch of the decoder changes from run to run."""
    step = Step(TILED, 5, 15)
    with rig.started("clients") as server:
        server.answers_at_once(step.picture)
        counts = server.counts()
    sent = f"{NAMES[TILED]}, four clients at once"
    return _row(None, sent, counts, "not compared (batches differ)", _wrong(step, counts, equal=True))


def _refusal(rig: Rig, limit: str) -> Row:
    """A server that cannot know how much it may keep does not start."""
    log = rig.logs / "refusal.log"
    child, _ = launch(rig.patched, rig.models, log, limit)
    try:
        ended = child.wait(END_SECONDS)
        code = child.poll()
        named = f"JEV_IMAGE_CACHE_MIB has to be a whole number from 0 (no cache) to 4096, and is '{limit}'"
        good = ended and code != 0 and named in log.read_text(errors="replace")
    finally:
        stop([child])
    wrong = "" if good else f"WRONG: exit code {code}, or no word about the limit"
    return Row(f"`{limit}`" if limit else "empty", "nothing", "–", "–", "refuses to start and says why", wrong)


def contexts_row(program: Path, models: Models) -> Row:
    """Of native/tests/two_contexts.cpp."""
    command = [str(program), str(models.text), str(models.projector)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=END_SECONDS, check=False)
    said = done.stdout.splitlines()
    misses, hits = (sum(f": {word}" in line for line in said) for word in ("miss", "hit"))
    wrong = "" if done.returncode == 0 else f"WRONG: {done.stderr.strip()}"
    return _row(
        None,
        "picture A in three contexts of one process, twice in the first two, and once more after the first is gone",
        Counts(misses, hits),
        "one miss a context; all embeddings equal to the last bit",
        wrong,
    )


def files_row(differing: Sequence[str]) -> Row:
    """Of the two builds: what the patch reaches."""
    wrong = "" if list(differing) == ["bin/libmtmd.so.0"] else "WRONG: more than libmtmd, or nothing"
    return Row("any", "nothing", "–", "–", f"files that differ: {', '.join(differing)}", wrong)


def _row(limit: str | None, sent: str, counts: Counts, result: str, wrong: str) -> Row:
    return Row("128 (default)" if limit is None else limit, sent, str(counts.misses), str(counts.hits), result, wrong)


def table(found: Sequence[Row]) -> str:
    head = Row("limit (MiB)", "four questions about", "misses", "hits", "answers against the unpatched build")
    return "\n".join([str(head), "|---|---|---|---|---|", *map(str, found)])
