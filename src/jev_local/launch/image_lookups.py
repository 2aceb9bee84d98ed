"""What a llama-server with the image-encoder cache wrote into its log: which pictures were encoded, which not again."""

from __future__ import annotations

import re
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from jev_local.settings import MIB

LOOKUP = re.compile(
    r"JEV_IMAGE_CACHE (hit|miss)\b(?: \(([^)\n]*)\))?(?:, ([0-9]+) entries in ([0-9]+) of ([0-9]+) bytes)?"
)
STARTED = re.compile(r"^JEV_IMAGE_CACHE started (\S+), limit ([0-9]+) MiB$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Kept:
    """What the cache held after the last lookup: `entries` pictures or tiles in `used` of `limit` bytes."""

    entries: int
    used: int
    limit: int


@dataclass(frozen=True, slots=True)
class Lookups:
    """One for each picture of a question: `misses` were encoded, `hits` were there. `reasons`: why a miss was not
    kept -> how often."""

    misses: int = 0
    hits: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    kept: Kept | None = None

    def __str__(self) -> str:
        return f"{_counted(self.misses, 'miss', 'misses')} + {_counted(self.hits, 'hit', 'hits')}"

    def __bool__(self) -> bool:
        return bool(self.misses or self.hits)

    def __add__(self, later: Lookups) -> Lookups:
        return Lookups(
            self.misses + later.misses, self.hits + later.hits, self.reasons + later.reasons, later.kept or self.kept
        )


@dataclass(frozen=True, slots=True)
class Since:
    """A start of the server that this log tells of: when, in UTC, and with how many MiB."""

    moment: str
    limit: int


def count(text: str) -> Lookups:
    """Every lookup in a piece of log, wherever in a line it is."""
    hits = misses = 0
    reasons: Counter[str] = Counter()
    kept = None
    for what, reason, entries, used, limit in LOOKUP.findall(text):
        hits, misses = hits + (what == "hit"), misses + (what == "miss")
        if reason:
            reasons[reason] += 1
        if limit:
            kept = Kept(int(entries), int(used), int(limit))
    return Lookups(misses, hits, reasons, kept)


def since_start(text: str) -> tuple[Since | None, Lookups]:
    """The last start, if it is still in the log, and what was looked up from there on."""
    starts = list(STARTED.finditer(text))
    if not starts:
        return None, count(text)
    last = starts[-1]
    return Since(last[1], int(last[2])), count(text[last.end() :])


def mark_start(log: Path, limit: int) -> None:
    """The server appends to its log and one start follows on another: this line parts them."""
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    log.touch(mode=0o600)
    with log.open("a", encoding="utf-8") as file:
        file.write(f"JEV_IMAGE_CACHE started {moment}, limit {limit} MiB\n")


def report(text: str, *, port: int, log: Path, running: bool) -> str:
    """For the person at the terminal."""
    since, found = since_start(text)
    lines = [f"Image cache of the server on port {port}, which {'is running' if running else 'does not run now'}"]
    if since is None:
        lines.append("  since     its log begins: the start is not in there (cut off, or it was another launcher's)")
    else:
        lines.append(f"  since     {since.moment}, with a limit of {since.limit} MiB")
    lines.append(f"  misses    {found.misses} (encoded)")
    lines.append(f"  hits      {found.hits} (not encoded again)")
    lines += [f"  not kept  {number} ({reason})" for reason, number in found.reasons.most_common()]
    if found.kept is not None:
        lines.append(f"  holds     {_holds(found.kept)}")
    lines.append(f"  log       {log}")
    lines.append(_meaning(since, found))
    return "\n".join(lines)


def _holds(kept: Kept) -> str:
    each = f", {kept.used / kept.entries / MIB:.2f} MiB each on average" if kept.entries else ""
    return (
        f"{_counted(kept.entries, 'picture or tile', 'pictures or tiles')}: "
        f"{kept.used / MIB:.1f} of {kept.limit / MIB:.1f} MiB{each}"
    )


def _meaning(since: Since | None, found: Lookups) -> str:
    if found:
        return (
            "One lookup for every picture of every question; a large picture is several, one for each tile and one for "
            "its thumbnail. Which picture it was is not in the log."
        )
    if since is not None and since.limit == 0:
        return "The limit is 0: the cache is off, and nothing is looked up."
    return "No lookups: nobody has asked about a picture yet, or the projector is not LFM2's, which is all it is for."


def _counted(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
