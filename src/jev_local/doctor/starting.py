"""What stands in the way of a start, the first thing that does. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass

from jev_local.doctor.facts import Chosen, Facts, Step


@dataclass(frozen=True, slots=True)
class Commands:
    """What a person types here. `ask` is `systemone`."""

    setup: str
    up: str
    backend: str
    serve: str
    ask: str


def start(facts: Facts, commands: Commands) -> Step:
    """What to mend first, or the start itself."""
    if (chosen := facts.chosen) is not None:
        for rule in _RULES:
            if (step := rule(facts, chosen, commands)) is not None:
                return step
    return Step("All that is needed is here: start it.", commands.up)


def named(chosen: Chosen | None) -> str:
    """What set-up is told. A model that somebody named is kept; the default gives way to a better one."""
    if chosen is None or chosen.model_from == "the default":
        return "text"
    return chosen.model or shlex.quote(chosen.weights.path)


def _no_server(facts: Facts, chosen: Chosen, commands: Commands) -> Step | None:
    if chosen.server is not None or (facts.installed is not None and facts.installed.wheel is not None):
        return None
    return Step("There is no inference server: get one.", f"{commands.setup} --model {named(chosen)}")


def _broken_server(_: Facts, chosen: Chosen, commands: Commands) -> Step | None:
    if chosen.gpus_trouble is None:
        return None
    return Step(
        f"{chosen.server} does not run here ({chosen.gpus_trouble}): get another, or name one with LLAMA_SERVER.",
        f"{commands.setup} --model {named(chosen)}",
    )


def _no_model(facts: Facts, chosen: Chosen, commands: Commands) -> Step | None:
    if not chosen.missing:
        return None
    missing = chosen.missing[0].path
    if chosen.model is None:
        return Step(
            f"There is no file {missing}: name one that is there.", f"{commands.up} --model /path/to/model.gguf"
        )
    unreachable = [host.what for host in facts.hosts if not host.reachable]
    if facts.hosts and len(unreachable) == len(facts.hosts):
        if chosen.in_index:
            return Step(
                f"{missing} is not here, and {' and '.join(unreachable)} cannot be reached. The package index has it "
                "too: start, which tries that.",
                commands.up,
            )
        return Step(
            f"{missing} is not here, and {' and '.join(unreachable)} cannot be reached: connect this machine, or name "
            "a file that you have.",
            f"{commands.up} --model /path/to/model.gguf",
        )
    if chosen.model_from == "the default":
        return Step(
            f"No model is here yet: get a good one, and a server for this machine. ({commands.up} makes do with a "
            "smaller one and what is installed.)",
            f"{commands.setup} --model text",
        )
    return Step(f"{missing} is not here yet: fetch it.", f"{commands.setup} --model {chosen.model} --model-only")


def _damaged(facts: Facts, chosen: Chosen, commands: Commands) -> Step | None:
    if facts.memory is None or facts.memory.trouble is None:
        return None
    return Step(
        f"The model file {chosen.weights.path} is of no use: {facts.memory.trouble}. Remove it, and get it again.",
        commands.up if chosen.model is None else f"{commands.setup} --model {chosen.model} --model-only",
    )


def _too_large(facts: Facts, _: Chosen, commands: Commands) -> Step | None:
    memory = facts.memory
    if memory is None or memory.verdict not in ("too large", "fits when freed"):
        return None
    smaller = memory.context_that_fits
    instead = "a smaller model" if smaller is None else "a smaller context"
    command = f"{commands.up} --model smollm2" if smaller is None else f"CTX_SIZE={smaller} {commands.up}"
    if memory.verdict == "too large":
        return Step(f"It does not fit into the {memory.room.what}: take {instead}.", command)
    return Step(f"Others use the {memory.room.what} just now: end some of them, or take {instead}.", command)


def _full_disk(facts: Facts, _: Chosen, commands: Commands) -> Step | None:
    store = None if facts.memory is None else facts.memory.store
    if store is None or store.in_memory or store.free is None or store.free >= store.to_come:
        return None
    return Step(
        f"Saved states may take more than the disk of {store.folder} has free: free some, name another folder with "
        "SLOT_CACHE_DIR, or keep less.",
        f"{commands.up} -- --prefix-cache-bytes {store.free // 2 >> 20}M",
    )


_RULES: tuple[Callable[[Facts, Chosen, Commands], Step | None], ...] = (
    _no_server,
    _broken_server,
    _no_model,
    _damaged,
    _too_large,
    _full_disk,
)
