"""The parts of the report of `benchmark_prompt_cache`: each condition, what it means, and what came of it."""

from __future__ import annotations

import json
from typing import Any

from tools.prompt_cache_results import NOT_MEASURED, NOT_REPORTED, Results
from tools.prompt_cache_rounds import (
    AFTER,
    AGAIN,
    BEFORE,
    CONCURRENCY,
    FIRST,
    MIXED,
    ORDER,
    SEQUENTIAL,
    Asked,
)
from tools.prompt_cache_summary import Together, errors, gone_after, good, spread, verdicts
from tools.prompt_cache_tables import Grid, Part, mib, ms, rate, ratio, requests, tokens

TITLE = "Prompt cache benchmark"
HOW = (
    "Numbers are `median (least-most)` over all rounds. Times are the client's: the first token is the first piece of "
    "an answer, a thought or a tool call in a stream; tokens per second are those after the first. Answers are made "
    "anew every time; what can be saved is reading the beginning of a prompt."
)


def parts(results: Results) -> list[Part]:
    note = (f"**{results.note}**",) if results.note else ()
    return [
        Part("What was measured", (*note, HOW), _environment(results)),
        _cold(results),
        _sequential(results),
        _concurrency(results),
        _mixed(results),
        _order(results),
        _answers(results),
        _memory(results),
        *_errors(results),
    ]


def _environment(results: Results) -> Grid:
    rows: list[tuple[str, str]] = []
    for name, value in results.environment.items():
        inner = value if isinstance(value, dict) else {"": value}
        rows += [(f"{name} {key}".strip().replace("_", " "), _plain(one)) for key, one in inner.items()]
    told = NOT_REPORTED if results.policy_tokens is None else str(results.policy_tokens)
    sources = sorted({one.reply.cached_from for one in good(results.asked)})
    rows += [("tokens of the policy", told), ("cached tokens are taken from", ", ".join(sources) or NOT_REPORTED)]
    return Grid(("what", "value"), tuple(rows))


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _role(results: Results, condition: str, role: str) -> list[Asked]:
    return [one for one in results.of(condition) if one.role == role]


def _cold(results: Results) -> Part:
    title = "Cold start"
    if not results.starts:
        return Part(title, (f"{NOT_MEASURED}: the server was running already. `--launch` starts one and measures it.",))
    starts = [one for one in results.starts if one.reply.error is None]
    later = spread(one.reply.first for one in good(_role(results, SEQUENTIAL, FIRST)))
    rows = (
        ("model load: from the start until the server answers, ms", ms(spread(one.load for one in results.starts))),
        ("first request: first token, ms", ms(spread(one.reply.first for one in starts))),
        ("first request: complete, ms", ms(spread(one.reply.total for one in starts))),
        ("a later request about a policy not read before: first token, ms", ms(later)),
        ("memory when it answered, MiB", mib(spread(one.loaded for one in results.starts))),
        ("peak memory until the first request was complete, MiB", mib(spread(one.peak for one in results.starts))),
    )
    text = (
        f"{len(results.starts)} starts. What the first request takes beyond a later one was loading too: some servers "
        "answer before their model is in memory. Later starts find the model's file in the system's own cache.",
    )
    return Part(title, text, Grid(("what", "value"), rows))


def _sequential(results: Results) -> Part:
    first, again = _role(results, SEQUENTIAL, FIRST), _role(results, SEQUENTIAL, AGAIN)
    told = (
        "One request at a time on a server that is ready: a policy that was never sent before, then other questions "
        "about the same one.",
        f"First token, read before / not read before: {ratio(again, first)}.",
    )
    return Part("Sequential, warm", told, requests("policy", ((FIRST, first), (AGAIN, again))), "sequential")


def _concurrency(results: Results) -> Part:
    columns = (
        *("prefix", "clients", "first token, ms", "median request, ms", "slowest, ms", "wall time, ms"),
        *("sum of requests, ms", "one after another, ms", "slowdown, %", "completions/s", "tokens/s"),
        *("cached tokens", "peak memory, MiB", "failed"),
    )
    rows = tuple(_together(one) for one in results.together())
    text = (
        "All clients send at once. `wall time` is from the first request to the end of the last one; `sum of requests` "
        "adds the times that each client waited, which is another number; `one after another` is the wall time of the "
        "same requests sent in turn; `slowdown` is how much longer the median request took than in turn. With a common "
        "prefix the policy was read before; with one prefix a client nobody had read any.",
    )
    return Part("Concurrency", text, Grid(columns, rows), "concurrency")


def _together(one: Together) -> tuple[str, ...]:
    return (
        *(one.kind, str(one.clients), ms(one.first), ms(one.median), ms(one.slowest), ms(one.wall), ms(one.summed)),
        *(ms(one.alone), NOT_MEASURED if one.slowdown is None else one.slowdown.told(), one.completions.told(2)),
        *(rate(one.tokens), tokens(one.cached), mib(one.peak), str(one.failed)),
    )


def _mixed(results: Results) -> Part:
    found = results.returns()
    columns = ("others between", "hits", "A's first visit: first token, ms", "back to A: first token, ms")
    rows = tuple(
        (
            str(one.others),
            f"{one.hits} of {one.visits}" + (" (inferred)" if one.inferred else ""),
            ms(one.first),
            ms(one.back),
            tokens(one.cached),
        )
        for one in found
    )
    text = [
        "A, then so many other policies, and back to A with another question. A hit has more than half of the policy's "
        "tokens from a cache.",
        gone_after(found),
    ]
    if any(one.inferred for one in found):
        text.append("This server reports no cached tokens: a hit is inferred from a first token in half the time.")
    return Part("Mixed prefixes", tuple(text), Grid((*columns, "back to A: cached tokens"), rows), "mixed")


def _order(results: Results) -> Part:
    before, after = _role(results, ORDER, BEFORE), _role(results, ORDER, AFTER)
    text = (
        "The same policy and questions with a time and a customer that change in every request. A cache reuses the "
        "beginning of a prompt, so what stands behind the first thing that changes is read again.",
        f"First token, before / after: {ratio(before, after)}.",
    )
    return Part("What order costs", text, requests("order", ((AFTER, after), (BEFORE, before))), "order")


def _answers(results: Results) -> Part:
    rows = []
    for condition in (SEQUENTIAL, CONCURRENCY, ORDER):
        asked = [one for one in results.of(condition) if one.verdict is not None]
        if asked:
            cut = sum(one.reply.finish == "length" for one in asked)
            rows.append((condition, str(len(asked)), *(str(n) for n in verdicts(asked).values()), str(cut)))
    columns = ("condition", "answers", "correct", "policy sentence missing", "no reason", "cut off at --max-tokens")
    text = [
        "Correct is an answer with the sentence of the policy that applies, almost word for word, and a reason that "
        "fits the question. It tells a fast wrong answer from a fast right one, and is no measure of a model."
    ]
    if any(one.reply.thought for one in results.asked):
        text.append("This model thinks before it answers: give it more --max-tokens where answers are cut off.")
    return Part("Answers", tuple(text), Grid(columns, tuple(rows)))


def _memory(results: Results) -> Part:
    title = "Memory of the server"
    if not results.samples:
        return Part(title, (f"{NOT_MEASURED}: no process of this machine was found to listen at the server's port.",))
    idle = spread([results.idle])
    peaks = [(one, spread([results.peak(one)])) for one in (SEQUENTIAL, CONCURRENCY, MIXED, ORDER)]
    rows = (
        ("before the conditions below", mib(idle)),
        *((f"peak: {name}", mib(found)) for name, found in peaks if found is not None),
    )
    text = (
        "Resident memory in MiB of the process that listens, and of everything below it: weights that are mapped from "
        "their file, the live cache, stored entries and scratch. Memory of a GPU of its own is not in it, and neither "
        "is a server behind this one.",
    )
    return Part(title, text, Grid(("when", "MiB"), rows), "memory")


def _errors(results: Results) -> list[Part]:
    found = errors(results.asked)
    failed = [one.reply.error for one in results.starts if one.reply.error is not None]
    rows = tuple((text, str(count)) for text, count in found.most_common(20)) + tuple((one, "1") for one in failed)
    return [Part("Errors", grid=Grid(("what the server said", "requests"), rows))] if rows else []
