"""Keep the API busy with everything at once, and see whether it stays well: no 5xx, no growth, no more on disk than
it may have.

    python3 -m tools.mixed_load --backend-url http://127.0.0.1:8097 --seconds 600 [--prefix-cache-bytes 64M]

Starts the API on a free port by itself. Its clients ask 1 to 12 questions about short and long states, some of which
come again; some leave before the answer, some send what is no request, and now and then one deletes all saved states.
Every answer's shape is checked. The llama-server has to serve nobody else meanwhile, and the folder that it saves its
slots in has to be empty of saved states; none are left there.

Memory is compared between the first minute after a warm-up of 60 s and the last minute; a run of less than 4 minutes
is warmed up for a quarter of it, and compares what is left in halves of a minute at most.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from jev_local.launch.arguments import parser as product_parser
from jev_local.launch.errors import CannotStart
from jev_local.launch.process import Child, stop
from jev_local.settings import MIB
from tools.benchmark_overhead import await_ready
from tools.local_server import NO_SERVER, add_options, is_ready, slot_folder
from tools.mixed_load_requests import LONG_BYTES, MARK, Mix, fault
from tools.resident import Sample, folder_bytes, growth, resident, warm_up

GROWTH_BOUND = 20 * 1000 * 1000
SLOT_FILES = "prefix-*.slot"
SAMPLE_SECONDS, DISK_SECONDS = 5.0, 0.25
CLEAR_TIMES = 20
REFUSED, FAILED, INTERRUPTED = 2, 1, 130
"""Exit codes."""


@dataclass(slots=True)
class Seen:
    """What happened. replies: "kind status" -> how many. disk: the most bytes that saved states took at once.
    file: of the largest single one."""

    seconds: float = 0.0
    replies: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    samples: list[Sample] = field(default_factory=list)
    disk: int = 0
    file: int = 0
    log_errors: int = 0
    states_in_log: int = 0


async def load(url: str, api: Child, folder: Path, options: argparse.Namespace, seen: Seen) -> None:
    """All clients until the time is over, or the API has ended."""
    begun = time.monotonic()
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=600) as http:
        context = int((await http.get("/ready")).json()["backend"]["context"])
        work = [
            asyncio.create_task(client(http, Mix(number, longest=min(LONG_BYTES, context // 2)), seen))
            for number in range(options.clients)
        ]
        work.append(asyncio.create_task(watch_disk(folder, seen)))
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            bar = progress.add_task("mixed load", total=options.seconds)
            try:
                while seen.seconds < options.seconds and api.poll() is None:
                    seen.samples.append(Sample(round(seen.seconds, 1), resident(api.pid)))
                    said = f"{seen.replies.total()} replies, {seen.faults.total()} faults, {_mb(seen.samples[-1].rss)}"
                    progress.update(bar, completed=seen.seconds, description=said)
                    await asyncio.sleep(min(SAMPLE_SECONDS, options.seconds - seen.seconds))
                    seen.seconds = time.monotonic() - begun
            finally:
                for task in work:
                    task.cancel()
                for ended in await asyncio.gather(*work, return_exceptions=True):
                    if isinstance(ended, Exception):
                        seen.faults[f"a client broke: {type(ended).__name__}"] += 1
                if api.poll() is None:
                    seen.samples.append(Sample(round(seen.seconds, 1), resident(api.pid)))
                    await clear(http)
                else:
                    seen.faults[f"the API {api.ending()}"] += 1


async def client(http: httpx.AsyncClient, mix: Mix, seen: Seen) -> None:
    while True:
        errand = mix.draw()
        try:
            async with asyncio.timeout(errand.leaves):
                response = await http.request(errand.method, errand.path, content=errand.content)
        except TimeoutError:
            seen.replies[f"{errand.kind} left"] += 1
            continue
        except httpx.TransportError as error:
            seen.faults[f"{errand.kind}: {type(error).__name__}"] += 1
            await asyncio.sleep(0.5)
            continue
        seen.replies[f"{errand.kind} {response.status_code}"] += 1
        if wrong := fault(errand, response.status_code, response.content):
            seen.faults[wrong] += 1


async def clear(http: httpx.AsyncClient) -> None:
    """Leave no saved state, nor one that somebody who just left had begun to save."""
    with suppress(httpx.TransportError):
        for _ in range(CLEAR_TIMES):
            if not (await http.delete("/v1/cache")).json()["deleted"]:
                return
            await asyncio.sleep(1)


async def watch_disk(folder: Path, seen: Seen) -> None:
    while True:
        total, largest = await asyncio.to_thread(folder_bytes, folder, SLOT_FILES)
        seen.disk, seen.file = max(seen.disk, total), max(seen.file, largest)
        await asyncio.sleep(DISK_SECONDS)


def report(seen: Seen, *, budget: int, workers: int) -> dict[str, Any]:
    """With a verdict for each target."""
    grown = growth(seen.samples, since=warm_up(seen.seconds))
    # Whoever is being answered may need a file that is no longer kept, and one is written before others make room.
    room = budget + 2 * workers * seen.file
    return {
        "seconds": round(seen.seconds, 1),
        "growth_bytes": grown,
        "store": {"largest_bytes": seen.disk, "budget": budget, "largest_file": seen.file, "room": room},
        "met": {
            "no fault": not seen.faults,
            "grows by less than 20 MB": None if grown is None else grown < GROWTH_BOUND,
            "saved states keep to their room": seen.disk <= room,
            "no error and no state in the log": not seen.log_errors and not seen.states_in_log,
        },
        "replies": dict(sorted(seen.replies.items())),
        "faults": dict(seen.faults),
        "log_errors": seen.log_errors,
        "states_in_log": seen.states_in_log,
        "samples": [asdict(sample) for sample in seen.samples],
    }


def show(got: dict[str, Any]) -> None:
    store, grown = got["store"], got["growth_bytes"]
    print(f"{sum(got['replies'].values())} replies in {got['seconds']:.0f} s: {_list(got['replies'])}")
    print(f"faults: {_list(got['faults']) or 'none'}")
    if got["samples"]:
        grew = "had too few samples to tell" if grown is None else f"grew by {_mb(grown)}"
        first, last = (_mb(got["samples"][i]["rss"]) for i in (0, -1))
        print(f"memory: {first} at the start, {last} at the end; after the warm-up it {grew}")
    print(
        f"saved states: {_mb(store['largest_bytes'])} at most; allowed are {_mb(store['room'])}: the budget of "
        f"{_mb(store['budget'])} and what requests in flight hold. The largest file: {_mb(store['largest_file'])}"
    )
    for what, met in got["met"].items():
        print(f"{'unknown' if met is None else 'met' if met else 'MISSED':<8}{what}")


def start(url: str, folder: Path, log: Path, options: argparse.Namespace) -> tuple[Child, str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    argv = [sys.executable, "-m", "jev_local", "serve", "--backend-url", url, "--port", str(port)]
    argv += ["--slot-cache-dir", str(folder), "--prefix-cache-bytes", options.prefix_cache_bytes, "--chat-slots", "0"]
    # Those who left are still counted for a moment, and 529 would be a 5xx.
    argv += ["--max-in-flight", str(4 * options.clients + 8)]
    return Child("API", argv, log=log, environment=os.environ | {"JEV_API_KEY": ""}), f"http://127.0.0.1:{port}"


def read_log(log: Path, seen: Seen) -> None:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    seen.log_errors = sum(" ERROR " in line or "Traceback" in line for line in lines)
    seen.states_in_log = sum(MARK in line for line in lines)


def _mb(size: int) -> str:
    return f"{size / MIB:.1f} MiB"


def _list(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python3 -m tools.mixed_load",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="exit codes: 0 all well; 1 something was not; 2 not possible here, and why; 3 no llama-server",
    )
    add_options(made)
    add = made.add_argument
    add("--seconds", type=float, default=600, metavar="N", help="how long (%(default)g)")
    add("--prefix-cache-bytes", default="64M", metavar="N", help="room for saved states (%(default)s)")
    add("--clients", type=int, default=8, metavar="N", help="how many at once (%(default)s)")
    add("--output", type=Path, default=Path("results/mixed_load.json"), metavar="FILE", help="%(default)s")
    return made


def main() -> int:
    command = parser()
    options = command.parse_args()
    if options.clients < 1 or not 0 < options.seconds < 10**6:
        command.error("--clients has to be at least 1, and --seconds positive")
    try:
        folder = slot_folder(options.slot_cache_dir)
    except CannotStart as error:
        command.error(str(error))
    as_served = product_parser().parse_args(["serve", "--prefix-cache-bytes", options.prefix_cache_bytes])
    url = options.backend_url.rstrip("/")
    if not is_ready(url):
        return NO_SERVER
    if any(folder.glob(SLOT_FILES)):
        print(
            "The folder of saved states is not empty, and this would delete what is in it. Delete it yourself "
            "(DELETE /v1/cache), or name another folder here and for the inference server.",
            file=sys.stderr,
        )
        return REFUSED
    seen, code = Seen(), 0
    with tempfile.TemporaryDirectory() as scratch:
        log = Path(scratch) / "api.log"
        api, address = start(url, folder, log, options)
        try:
            await_ready(api, address)
            asyncio.run(load(address, api, folder, options, seen))
        except SystemExit as error:
            print(f"{error}{api.last_lines()}", file=sys.stderr)
            return REFUSED
        except KeyboardInterrupt:
            code = INTERRUPTED
        finally:
            stop([api])
        with suppress(OSError):
            read_log(log, seen)
    got = report(seen, budget=as_served.prefix_cache_bytes, workers=as_served.workers)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(got, indent=2) + "\n", encoding="utf-8")
    show(got)
    print(f"everything: {options.output}")
    return code or (0 if all(got["met"].values()) else FAILED)


if __name__ == "__main__":
    sys.exit(main())
