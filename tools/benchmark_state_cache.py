"""What sharing a state saves: the API with --state-cache off, shared and auto, next to the least a server has to do.

    python3 -m tools.benchmark_state_cache --backend-url http://127.0.0.1:8097 [--rounds 5] [--cases short,1025]

cases:
  short    the example of examples/systemone.json as it is
  NUMBER   the same questions behind as much history as makes their common beginning that many tokens long
  warm     1,025 tokens that other questions have just read
  revisit  twelve states of 365 tokens, three questions each, all asked about twice in turn (once, whatever --rounds)

The floor is what an engine without any overhead would have evaluated: in one slot, the common beginning, and then the
rest of all questions as one prompt. It is measured straight on the server in every round, between the modes. Every way
begins with erased slots and no saved state, and they take turns in going first. Ratios are medians of the ratios
within a round.

Requests go through the whole API, in this process. The llama-server has to serve nobody else meanwhile, and the
folder that it saves its slots in has to be empty of saved states. Both are left as they were, also after Ctrl-C.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from jev_local.engine.folder import StoreRefused
from jev_local.engine.locks import LockRefused, Occupied
from jev_local.errors import JevError
from jev_local.launch.errors import CannotStart
from jev_local.settings import ApiSettings
from tools.local_server import NO_SERVER, add_options, is_ready, slot_folder
from tools.state_cache_bench import MODES, Bench, opened
from tools.state_cache_cases import (
    DEFAULT_CASES,
    REVISIT,
    REVISITED,
    SHORT,
    WARM,
    WARM_TOKENS,
    CannotMeasure,
    case_names,
    example,
    make,
    revisited,
)
from tools.state_cache_report import WIDTH, Results, environment, profile_line, show, to_json
from tools.state_cache_rounds import Measured, Revisited, cold, revisit, warm

NAMED_TOKENS = {SHORT: 0, WARM: WARM_TOKENS}

REFUSED, BROKEN, MISSED, INTERRUPTED = 2, 1, 1, 130


async def measure(
    bench: Bench, results: Results, names: Sequence[str], *, rounds: int, questions: int, progress: Progress
) -> None:
    """Every case, into `results` as it comes."""
    backend, session = bench.backend, bench.session
    bar = progress.add_task("first requests", total=sum(steps(name, rounds) for name in names))
    for mode in MODES:  # whatever is slow only once
        await bench.fresh()
        await bench.ask(mode, example(2))
    for name in names:

        def step(done: str, name: str = name) -> None:
            progress.update(bar, advance=1, description=f"{name}: {done}")

        progress.update(bar, description=f"{name}: how much history")
        if name == REVISIT:
            results.revisited = Revisited(await revisited(backend, session, questions=questions))
            await revisit(bench, results.revisited, step)
            continue
        tokens = NAMED_TOKENS[name] if name in NAMED_TOKENS else int(name)
        measured = Measured(await make(backend, session, name, questions=questions, tokens=tokens))
        results.measured.append(measured)
        await (warm if name == WARM else cold)(bench, measured, rounds, step)


def steps(name: str, rounds: int) -> int:
    """How often the progress of a case moves."""
    return {REVISIT: 2 * REVISITED, WARM: 2 * rounds}.get(name, (len(MODES) + 1) * rounds + 1)


async def run(options: argparse.Namespace, settings: ApiSettings, results: Results, console: Console) -> None:
    async with opened(settings) as bench:
        results.environment = environment(bench, settings, rounds=options.rounds)
        console.print(profile_line(bench.session), soft_wrap=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console, transient=True) as progress:
            try:
                await measure(
                    bench,
                    results,
                    options.cases,
                    rounds=options.rounds,
                    questions=options.questions,
                    progress=progress,
                )
            finally:
                kept = asdict(bench.store.report())
                results.store = {name: kept[name] for name in ("saving", "reason", "hits", "misses")}


def save(results: Results, output: Path) -> None:
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(to_json(results), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python3 -m tools.benchmark_state_cache",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="exit codes: 0 measured, whatever came of it; 1 ended early, or with --strict a target was missed; "
        "2 not possible here, and why; 3 no llama-server",
    )
    add_options(made)
    add = made.add_argument
    add("--rounds", type=int, default=5, metavar="N", help="of every case (%(default)s)")
    add("--cases", default=",".join(DEFAULT_CASES), metavar="LIST", help="which of them (%(default)s)")
    add("--questions", type=int, default=12, metavar="N", help="of the example, 2 to 12 (%(default)s)")
    add("--strict", action="store_true", help="exit with 1 where a target is missed")
    add("--output", type=Path, default=Path("results/state_cache_benchmark.json"), metavar="FILE", help="%(default)s")
    return made


def main() -> int:
    command = parser()
    options = command.parse_args()
    if options.rounds < 1:
        command.error("--rounds has to be at least 1")
    if not 2 <= options.questions <= 12:
        command.error("--questions has to be 2 to 12: one alone shares nothing")
    try:
        options.cases = case_names(options.cases)
    except ValueError as error:
        command.error(f"--cases: {error}")
    url = options.backend_url.rstrip("/")
    try:
        settings = ApiSettings(backend_url=url, slot_cache_dir=slot_folder(options.slot_cache_dir), key="")
    except (ValueError, CannotStart) as error:
        command.error(str(error))
    if not is_ready(url):
        return NO_SERVER
    results, code = Results(), 0
    told = Console(stderr=True, highlight=False)
    try:
        asyncio.run(run(options, settings, results, told))
    except (Occupied, LockRefused, StoreRefused, CannotMeasure) as error:
        results.note, code = str(error), REFUSED
    except JevError as error:
        results.note, code = f"Ended early: {error.message}", BROKEN
    except KeyboardInterrupt:
        results.note, code = "Interrupted: only what was measured until then.", INTERRUPTED
    if results.note:
        print(results.note, file=sys.stderr)
    if not results.measured and results.revisited is None:
        return code
    save(results, options.output)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH)
    show(results, console)
    console.print(f"everything: {options.output}", markup=False, soft_wrap=True)
    missed = [target for target in results.targets() if not target.met]
    return code or (MISSED if options.strict and missed else 0)


if __name__ == "__main__":
    sys.exit(main())
