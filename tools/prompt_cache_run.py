"""A whole run of `benchmark_prompt_cache`: the server found or started, and every condition on it in turn."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console

from tools.image_cache_progress import Steps
from tools.prompt_cache_client import ChatClient
from tools.prompt_cache_material import Material, fresh
from tools.prompt_cache_memory import Watch
from tools.prompt_cache_results import Results
from tools.prompt_cache_rounds import (
    COLD,
    CONCURRENCY,
    FIRST,
    MIXED,
    ORDER,
    SEQUENTIAL,
    Bench,
    Start,
    concurrency,
    mixed,
    order,
    sequential,
    spanned,
    steps,
)
from tools.prompt_cache_server import Launched, NoServer, about, answers, is_taken, launched, process_of


@contextmanager
def server(parsed: argparse.Namespace, number: int) -> Iterator[Launched | None]:
    """The one that runs already, or start `number` of it."""
    if parsed.launch is None:
        yield None
        return
    log = parsed.output / f"server-{number}.log"
    log.unlink(missing_ok=True)
    with launched(parsed.launch, parsed.url, log, key=parsed.key) as made:
        yield made


def run(parsed: argparse.Namespace, material: Material, results: Results, console: Console) -> None:
    """Everything, into `results` as it comes. NoServer where there is none."""
    starts = parsed.starts if parsed.launch is not None else 1
    requests = steps(len(material.questions), parsed.concurrency, parsed.prefixes, parsed.rounds)
    with Steps(requests + (starts if parsed.launch is not None else 0), console) as progress:
        for number in range(1, starts + 1):
            if parsed.launch is not None:
                if is_taken(parsed.url):
                    raise NoServer(f"Something answers at {parsed.url} already: end it, or leave out --launch.")
                progress.at(f"{COLD}, {number} of {starts}")
            elif not answers(parsed.url, parsed.key):
                raise NoServer(f"No server is ready at {parsed.url}. `--launch` starts one.")
            with server(parsed, number) as made:
                pid = process_of(parsed.url) if made is None else made.child.pid
                with Watch(pid) as watch:
                    asyncio.run(use(parsed, material, results, Running(watch, made, number == starts), progress))


@dataclass(frozen=True, slots=True)
class Running:
    """One that runs. The `last` one is measured in everything but its start."""

    watch: Watch
    made: Launched | None
    last: bool


async def use(
    parsed: argparse.Namespace, material: Material, results: Results, running: Running, progress: Steps
) -> None:
    """One server, from its first request on."""
    watch, made = running.watch, running.made
    client = ChatClient(parsed.url, model=parsed.model, key=parsed.key, max_tokens=parsed.max_tokens)
    bench = Bench(client, material, watch, log=None if made is None else made.log, step=progress.step)
    try:
        if made is not None:
            loaded = watch.look()
            reply = (await bench.ask(COLD, len(results.starts), FIRST, material.prompt(fresh(), 0))).reply
            watch.look()
            results.starts.append(Start(made.load, reply, loaded, watch.peak()))
        if running.last:
            await everything(parsed, bench, results, progress)
    finally:
        results.asked += bench.asked
        results.batches += bench.batches
        results.spans |= bench.spans
        results.samples = watch.samples
        await client.aclose()


async def everything(parsed: argparse.Namespace, bench: Bench, results: Results, progress: Steps) -> None:
    results.environment["server"] |= about(parsed.url, parsed.key, bench.watch.pid)
    results.idle = bench.watch.look()
    await count(bench, results)
    conditions: dict[str, Callable[[], Awaitable[None]]] = {
        SEQUENTIAL: lambda: sequential(bench, parsed.rounds),
        CONCURRENCY: lambda: concurrency(bench, parsed.concurrency, parsed.rounds),
        MIXED: lambda: mixed(bench, parsed.prefixes, parsed.rounds),
        ORDER: lambda: order(bench, parsed.rounds),
    }
    for name, measure in conditions.items():
        progress.at(name)
        await spanned(bench, name, measure())


async def count(bench: Bench, results: Results) -> None:
    """The tokens of the policy, from what the server reports with it and without. NoServer where it answers neither."""
    whole = await bench.client.ask(bench.material.prompt(fresh(), 0), max_tokens=1)
    if whole.error is not None:
        raise NoServer(f"The server does not answer a chat: {whole.error}")
    bare = await bench.client.ask(bench.material.without_policy(), max_tokens=1)
    if whole.input_tokens is not None and bare.input_tokens is not None:
        results.policy_tokens = whole.input_tokens - bare.input_tokens
    if whole.fingerprint is not None:
        results.environment["server"]["system_fingerprint"] = whole.fingerprint
