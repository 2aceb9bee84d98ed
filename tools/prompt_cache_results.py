"""Everything that a run of `benchmark_prompt_cache` found, and the lines that are kept of it."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from jev_local import __version__
from tools.prompt_cache_client import Reply
from tools.prompt_cache_material import Material
from tools.prompt_cache_memory import Sample
from tools.prompt_cache_rounds import CONCURRENCY, MIXED, ORDER, SEQUENTIAL, Asked, Batch, Start
from tools.prompt_cache_summary import Return, Together, returns, together, verdicts

NOT_REPORTED, NOT_MEASURED = "not reported", "not measured"


@dataclass(slots=True)
class Results:
    """Filled as the run goes on, so that one that ends early has something to show. memory: whose, or why not."""

    environment: dict[str, Any]
    starts: list[Start] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)
    spans: dict[str, tuple[float, float]] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)
    policy_tokens: int | None = None
    idle: int | None = None
    note: str = ""

    @property
    def measured(self) -> bool:
        """Whether there is a number to show."""
        return any(one.reply.error is None for one in self.asked) or any(one.reply.error is None for one in self.starts)

    def of(self, condition: str) -> list[Asked]:
        return [one for one in self.asked if one.condition == condition]

    def together(self) -> list[Together]:
        shapes = dict.fromkeys((batch.kind, batch.clients) for batch in self.batches)
        found = [together(self.batches, kind, clients) for kind, clients in shapes]
        return sorted((one for one in found if one is not None), key=lambda one: (one.kind, one.clients))

    def returns(self) -> list[Return]:
        return returns(self.asked, self.policy_tokens)

    def peak(self, condition: str) -> int | None:
        if condition not in self.spans:
            return None
        began, ended = self.spans[condition]
        return max((one.rss for one in self.samples if began <= one.at <= ended), default=None)


SERVERS = ("xllamacpp", "mlx-lm", "mlx")
"""Distributions with a server in them."""


def environment(options: dict[str, Any], material: Material) -> dict[str, Any]:
    """What the numbers depend on, besides the server."""
    return {
        "began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "options": options,
        "policy": {"words": len(material.policy.split()), "questions": len(material.questions)},
        # Some servers do not tell theirs. One that was started from this environment has what is installed here.
        "versions": {"jev_local": __version__, "python": platform.python_version(), **_installed()},
        "machine": {
            "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
            "cpu": _processor(),
            "cpus": os.cpu_count(),
            "memory_bytes": _memory(),
            "load_average": round(os.getloadavg()[0], 2),
        },
    }


def _installed() -> dict[str, str]:
    found = {}
    for name in SERVERS:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[f"{name} (installed here)"] = metadata.version(name)
    return found


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


def written(results: Results) -> Iterator[str]:
    """JSON lines: what was measured, every start, every request, every batch, and what they come to."""
    lines: list[dict[str, Any]] = [{"kind": "environment", **results.environment}]
    lines += [{"kind": "start", "number": number, **_start(one)} for number, one in enumerate(results.starts, start=1)]
    lines += [{"kind": "request", **_asked(one)} for one in results.asked]
    lines += [{"kind": "batch", **_batch(one)} for one in results.batches]
    lines += [{"kind": "summary", **summary(results)}]
    for line in lines:
        yield json.dumps(line, ensure_ascii=False)


def summary(results: Results) -> dict[str, Any]:
    conditions = (SEQUENTIAL, CONCURRENCY, MIXED, ORDER)
    return {
        "note": results.note,
        "policy_tokens": NOT_REPORTED if results.policy_tokens is None else results.policy_tokens,
        "idle_rss_bytes": NOT_MEASURED if results.idle is None else results.idle,
        "peak_rss_bytes": {one: _known(results.peak(one), NOT_MEASURED) for one in conditions},
        "answers": {one: verdicts(results.of(one)) for one in (SEQUENTIAL, CONCURRENCY, ORDER)},
        "concurrency": [asdict(one) for one in results.together()],
        "mixed": [asdict(one) | {"gone": one.gone} for one in results.returns()],
    }


def _known(value: float | None, otherwise: str) -> float | str:
    return otherwise if value is None else value


def reply(one: Reply) -> dict[str, Any]:
    """Milliseconds. What a server did not tell is said to be `not reported`."""
    return {
        "ttft_ms": None if one.first is None else round(one.first * 1000, 2),
        "total_ms": round(one.total * 1000, 2),
        "decode_tokens_per_s": None if one.decode is None else round(one.decode, 2),
        "input_tokens": _known(one.input_tokens, NOT_REPORTED),
        "output_tokens": _known(one.output_tokens, NOT_REPORTED),
        "cached_tokens": _known(one.cached_tokens, NOT_REPORTED),
        "cached_from": one.cached_from,
        "finish": one.finish,
        "answer": one.text,
        **({"thought": True} if one.thought else {}),
        **({"error": one.error} if one.error else {}),
        **({"headers": one.headers} if one.headers else {}),
    }


def _asked(one: Asked) -> dict[str, Any]:
    told: dict[str, Any] = {"condition": one.condition, "round": one.round + 1, "role": one.role, "group": one.group}
    told |= {"edition": one.edition, "verdict": one.verdict} | reply(one.reply)
    return told | ({"log": list(one.log)} if one.log else {})


def _batch(one: Batch) -> dict[str, Any]:
    return {
        "prefix": one.kind,
        "way": one.way,
        "clients": one.clients,
        "round": one.round + 1,
        "wall_ms": round(one.wall * 1000, 2),
        "total_ms": [round(one.total * 1000, 2) for one in one.replies],
        "peak_rss_bytes": _known(one.peak, NOT_MEASURED),
    }


def _start(one: Start) -> dict[str, Any]:
    return {
        "load_ms": round(one.load * 1000, 2),
        "loaded_rss_bytes": _known(one.loaded, NOT_MEASURED),
        "peak_rss_bytes": _known(one.peak, NOT_MEASURED),
    } | reply(one.reply)
