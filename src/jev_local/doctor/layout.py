"""What was found, written down: sections with aligned names for people, one document for programs.

Plain text without colours, one fact a line and never wrapped: it is copied into reports and read in pipes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import PurePath

from jev_local.doctor.facts import Api, Backend, Chosen, Facts, File, Folder, Gpu, Installed, Memory, Speed, Step
from jev_local.safe_text import clean

Lines = Iterable[tuple[str, str]]


def document(facts: Facts, step: Step) -> dict[str, object]:
    """Everything as JSON values; the keys are the names in `facts`. Also `can_decide` and `next`."""
    return {"can_decide": facts.can_decide, **asdict(facts), "next": asdict(step)}


def text(facts: Facts, step: Step, encoding: str) -> str:
    """All of it, fit for a terminal with this encoding."""
    sections: list[tuple[str, Lines]] = []
    if facts.installed is not None:
        sections.append(("Installed", _installed(facts.installed)))
    sections.append(("Chosen", _chosen(facts)))
    sections.append(("Reachable", _reachable(facts)))
    sections.append(("Running", _running(facts)))
    sections.append(("Memory", _memory(facts.memory)))
    sections.append(("Speed", _speed(facts.speed)))
    sections.append(("Next", [("step", step.says), *([("run", step.command)] if step.command else [])]))
    return "\n".join(_section(name, lines, encoding) for name, lines in sections)


def _section(name: str, lines: Lines, encoding: str) -> str:
    found = [(clean(label, encoding), clean(value, encoding)) for label, value in lines]
    width = max((len(label) for label, _ in found), default=0)
    rows = (f"  {label:<{width}}  {value}" if width else f"  {value}" for label, value in found)
    return "".join(f"{row}\n" for row in (name, *rows))


def _installed(found: Installed) -> Iterator[tuple[str, str]]:
    yield "jev-local", found.package
    yield "Python", found.python
    yield "xllamacpp wheel", found.wheel or "not installed"
    yield "fetched servers", ", ".join(found.runtimes) or "none"
    yield "LLAMA_SERVER", found.llama_server or "not set"
    for file in found.models:
        yield f"model {file.model}", f"{file.file}, {size(file.bytes)}, {_STATES[file.state]}"
    if not found.models:
        yield "models", "none of those known by name"
    for what, folder in (("models are in", found.models_folder), ("the rest is in", found.cache_folder)):
        yield what, f"{folder.path}{'' if folder.is_there else ', not made yet'}{_room(folder)}"
    for trouble in found.troubles:
        yield "trouble", trouble


def _room(folder: Folder) -> str:
    if not folder.writable:
        return ", cannot be written to"
    return "" if folder.free is None else f", {size(folder.free)} free"


_STATES = {
    "verified": "verified",
    "unverified": "not verified yet",
    "wrong size": "has another size than it should: incomplete, or another file",
    "partial": "half fetched, goes on with the next try",
    "wrong": "set aside: it is not the file it should be",
}


def _chosen(facts: Facts) -> Iterator[tuple[str, str]]:
    chosen = facts.chosen
    if facts.trouble is not None:
        yield "trouble", facts.trouble
    if chosen is None:
        return
    yield "model", f"{chosen.model or PurePath(chosen.weights.path).name} ({chosen.model_from})"
    yield "weights", _file(chosen.weights)
    if chosen.projector is not None:
        yield "projector", _file(chosen.projector)
    yield "server", _server(chosen, facts.installed)
    if chosen.gpus_trouble is not None:
        yield "GPUs", f"the server cannot be asked: {chosen.gpus_trouble}"
    elif chosen.server is not None and not chosen.gpus:
        yield "GPUs", "this server lists none"
    for gpu in chosen.gpus:
        yield f"GPU {gpu.name}", _gpu(gpu)
    own = "as the server thinks best"
    settings = chosen.settings
    yield "CTX_SIZE", f"{settings.context}, and {settings.chat_context} for chats"
    yield "slots", f"{settings.parallel} for decisions, {settings.chat_slots} for chats"
    yield "BATCH_SIZE", str(settings.batch or own)
    yield "THREADS", str(settings.threads or own)
    yield "GPU_LAYERS", settings.gpu_layers or own
    yield "GPU_DEVICE", settings.gpu_device or own


def _server(chosen: Chosen, installed: Installed | None) -> str:
    if chosen.server is None:
        is_there = installed is None or installed.wheel is not None
        return "the one in the wheel" if is_there else "none: the wheel with one is not installed"
    return f"{chosen.server} ({chosen.server_from}{f', {chosen.backend}' if chosen.backend else ''})"


def _file(file: File) -> str:
    if file.bytes is None:
        return f"{file.path}, not here"
    wrong = f" instead of {size(file.expected or 0)}" if file.has_wrong_size else ""
    return f"{file.path}, {size(file.bytes)}{wrong}"


def _gpu(gpu: Gpu) -> str:
    if gpu.total is None or gpu.free is None:
        return gpu.about
    return f"{gpu.about}, {size(gpu.free)} of {size(gpu.total)} free"


def _reachable(facts: Facts) -> Iterator[tuple[str, str]]:
    if not facts.hosts:
        yield "", "not needed: everything is here" if facts.chosen and not facts.chosen.missing else "not tried"
    for host in facts.hosts:
        yield host.what, f"{'yes' if host.reachable else 'no'} ({': '.join(filter(None, (host.url, host.says)))})"


def _running(facts: Facts) -> Iterator[tuple[str, str]]:
    servers: tuple[tuple[str, Backend | Api], ...] = (("inference server", facts.backend), ("API", facts.api))
    for name, found in servers:
        yield name, f"{found.url}: {found.state}{f' ({found.says})' if found.says else ''}"
        told = (("model", found.model), ("slots", found.slots), ("context", found.context), ("build", found.build))
        if known := [f"{what} {value}" for what, value in told if value is not None]:
            yield "", ", ".join(known)
    if facts.runs_another:
        yield "another model", f"{facts.runs} is served, and another one is chosen"


def _memory(memory: Memory | None) -> Iterator[tuple[str, str]]:
    if memory is None:
        yield "", "cannot be told: there is no model file to look at"
        return
    if memory.trouble is not None:
        yield "", f"cannot be told from {memory.damaged or 'the model file'}: {memory.trouble}"
    for part in memory.parts:
        known = "not known" if part.bytes is None else size(part.bytes)
        notes = ", ".join(filter(None, ("an estimate" if part.estimate else "", part.note)))
        yield part.what, f"{known}{f' ({notes})' if notes else ''}"
    if memory.parts:
        least = "at least " if any(part.bytes is None for part in memory.parts) else ""
        yield "in all", f"{least}{size(memory.total)}"
    room = memory.room
    free = "" if room.available is None else f", {size(room.available)} of it available"
    yield "there is", f"{'not known' if room.total is None else size(room.total)}{free}: {room.what}"
    if memory.parts:
        yield "so it", _VERDICTS[memory.verdict]
    store = memory.store
    disk = "not known" if store.free is None else size(store.free)
    kind = "in memory" if store.in_memory else "on disk"
    yield "saved states", f"up to {size(store.bytes)} {kind}, {size(store.kept)} there, {disk} free: {store.folder}"


_VERDICTS = {
    "in memory": "is in memory already",
    "fits": "fits",
    "fits when freed": "does not fit beside what runs now",
    "too large": "does not fit",
    "unknown": "may fit: not all of it is known",
}


def _speed(speed: Speed) -> Iterator[tuple[str, str]]:
    yield "decision", f"{speed.state}{f' ({speed.says})' if speed.says else ''}"
    if speed.seconds is not None:
        yield "took", f"{speed.seconds:.2f} s"
    if speed.tokens_per_second is not None:
        yield "reading", f"{speed.tokens_per_second:,.0f} tokens/s ({speed.tokens} tokens)"
    if speed.probability is not None:
        yield "probability", f"{speed.probability:.3f}"


def size(count: int) -> str:
    """Bytes for people: in units of 1024, as llama-server has them."""
    value = float(count)
    for unit in ("bytes", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "bytes" or value >= 100 else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.2f} GiB"
