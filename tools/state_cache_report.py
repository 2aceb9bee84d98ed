"""What `benchmark_state_cache` shows and writes."""

from __future__ import annotations

import os
import platform
from collections import Counter
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from rich.console import Console
from rich.table import Table

from jev_local import __version__
from jev_local.engine.session import Session
from jev_local.settings import ApiSettings
from tools.state_cache_bench import Bench
from tools.state_cache_rounds import Measured, Revisited
from tools.state_cache_summary import Spread, Target, replies, revisit_summary, summary, targets, unanswered

PACKAGES = ("fastapi", "uvicorn", "httpx", "pydantic", "xllamacpp")
RATIOS = ("off/auto", "off/floor", "quotient", "auto/floor")
DIFFERENCES = ("off-auto", "shared-auto", "alone-auto")
WIDTH = 150
"""Columns, where nobody says how many there are."""


@dataclass(slots=True)
class Results:
    """Filled as the run goes on, so that one that ends early has something to show."""

    environment: dict[str, Any] = field(default_factory=dict)
    measured: list[Measured] = field(default_factory=list)
    revisited: Revisited | None = None
    store: dict[str, Any] = field(default_factory=dict)
    note: str = ""

    def targets(self) -> list[Target]:
        found = [target for measured in self.measured for target in targets(measured)]
        got = [reply for measured in self.measured for reply in replies(measured)]
        got += [visit.reply for visit in self.revisited.visits] if self.revisited is not None else []
        return [*found, Target("all", "replies other than 200", unanswered(got), 0)] if got else []


def environment(bench: Bench, settings: ApiSettings, *, rounds: int) -> dict[str, Any]:
    """What the numbers depend on. Holds no paths."""
    info, profile = bench.session.info, bench.session.profile
    return {
        "model": info.model,
        "build": info.build,
        "slots": info.slots,
        "context": info.context,
        "profile": {"trials": [asdict(trial) for trial in profile.trials], "truncates": profile.truncates},
        "settings": {
            "workers": settings.workers,
            "cache_min_tokens": settings.cache_min_tokens,
            "prefill_chunk": settings.prefill_chunk,
        },
        "rounds": rounds,
        "versions": {"jev_local": __version__, "python": platform.python_version(), **_versions()},
        "platform": f"{platform.system()} {platform.machine()}",
        "cpus": os.cpu_count(),
    }


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def to_json(results: Results) -> dict[str, Any]:
    told: dict[str, Any] = {"note": results.note} if results.note else {}
    told |= {"environment": results.environment, "store": results.store}
    told["cases"] = [_case(measured) for measured in results.measured]
    if results.revisited is not None:
        told["revisit"] = _revisit(results.revisited)
    told["targets"] = [asdict(target) | {"met": target.met} for target in results.targets()]
    return told


def _case(measured: Measured) -> dict[str, Any]:
    case = measured.case
    return {
        "name": case.name,
        "questions": case.questions,
        "prefix_tokens": case.prefix_tokens,
        "suffix_tokens": case.suffix_tokens,
        "summary": _plain(summary(measured)),
        "rounds": [asdict(round_) for round_ in measured.rounds],
    }


def _revisit(revisited: Revisited) -> dict[str, Any]:
    return {
        "states": len(revisited.cases),
        "questions": revisited.cases[0].questions,
        "prefix_tokens": [case.prefix_tokens for case in revisited.cases],
        "summary": _plain(revisit_summary(revisited)),
        "visits": [asdict(visit) for visit in revisited.visits],
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Spread):
        return asdict(value)
    return {key: _plain(inner) for key, inner in value.items()} if isinstance(value, dict) else value


def show(results: Results, console: Console) -> None:
    cases = [(measured, summary(measured)) for measured in results.measured if measured.rounds]
    if cases:
        console.print(_times(cases))
        console.print(_ratios(cases))
    if results.revisited is not None and results.revisited.visits:
        console.print(_visits(results.revisited))
    if results.targets():
        console.print(_targets(results.targets()))


def profile_line(session: Session) -> str:
    """How the server was found to go on from a prefix."""
    told = [
        f"{trial.name} {'exact' if trial.exact else 'not exact'}" + (f" {trial.ms:.0f} ms" if trial.ms else "")
        for trial in session.profile.trials
    ]
    return f"{session.info.model}, build {session.info.build}, {session.info.slots} slots: " + ", ".join(told)


def _times(cases: list[tuple[Measured, dict[str, Any]]]) -> Table:
    table = _table("milliseconds: median (least-most)", "case", "prefix + rest")
    for name in ("off", "shared", "auto", "floor", "its prefix", "its rest", "auto went by"):
        table.add_column(name, justify="right")
    for measured, found in cases:
        case, ms = measured.case, found["times_ms"]
        cells = [str(ms.get(name, "")) for name in ("off", "shared", "auto", "floor", "floor_prefix", "floor_suffix")]
        table.add_row(case.name, f"{case.prefix_tokens} + {case.suffix_tokens}", *cells, _counts(found["strategies"]))
    return table


def _ratios(cases: list[tuple[Measured, dict[str, Any]]]) -> Table:
    table = _table("medians of ratios within a round; largest differences of any probability", "case")
    for name in (*RATIOS, *(name.replace("-", " to ") for name in DIFFERENCES), "evaluated", "allowed"):
        table.add_column(name, justify="right")
    for measured, found in cases:
        cells = [f"{found['ratios'][name]:.2f}" if name in found["ratios"] else "" for name in RATIOS]
        differ = found["differences"]
        cells += [f"{differ[name]:.1e}" if name in differ else "" for name in DIFFERENCES]
        table.add_row(measured.case.name, *cells, str(found["evaluated_tokens"]), str(found["allowed_tokens"]))
    return table


def _visits(revisited: Revisited) -> Table:
    case = revisited.cases[0]
    title = f"revisit: {len(revisited.cases)} states of {case.prefix_tokens} tokens, {case.questions} questions each"
    table = _table(title, "visit")
    for name in ("milliseconds", "tokens evaluated", "prefixes from"):
        table.add_column(name, justify="right")
    for name, found in revisit_summary(revisited).items():
        cells = [str(found["times_ms"]), str(found["evaluated_tokens"]), _counts(found["sources"])]
        table.add_row(name.removeprefix("visit_"), *cells)
    return table


def _targets(found: list[Target]) -> Table:
    table = _table("targets", "case", "what")
    for name in ("measured", "target", ""):
        table.add_column(name, justify="right")
    for target in found:
        bound = f"at {'least' if target.at_least else 'most'} {target.bound:g}"
        verdict = "[green]met[/]" if target.met else "[bold red]missed[/]"
        table.add_row(target.case, target.what, f"{target.value:.4g}", bound, verdict)
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column)
    return table


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counter.most_common())
