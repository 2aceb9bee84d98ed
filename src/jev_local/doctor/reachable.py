"""Whether the places can be reached that something missing would be fetched from."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import httpx

from jev_local.doctor.facts import Chosen, Host
from jev_local.doctor.model_files import ALWAYS, HUB, TOY
from jev_local.doctor.starting import RELEASES
from jev_local.exchange import ask_once
from jev_local.launch import hub, runtimes
from jev_local.launch.intended import has_wheel
from jev_local.launch.models import CATALOGUE
from jev_local.launch.pins import HubSource
from jev_local.launch.remote import Unreachable
from jev_local.line import NoReply

SECONDS = 3.0
ENDPOINT = "https://huggingface.co"

NO_URL = "it is not a URL"


def wanted(chosen: Chosen, environment: Mapping[str, str], *, is_damaged: bool = False) -> dict[str, str]:
    """Name -> URL of those that are needed for what is chosen and missing, damaged, or worth replacing."""
    found = {}
    lacks = is_damaged or bool(chosen.unfetched)
    if (lacks and _is_on_hub(chosen)) or (chosen.model == TOY and not lacks):
        found[HUB] = environment.get("HF_ENDPOINT") or ENDPOINT
    if chosen.gpus_trouble is not None or (chosen.server is None and not has_wheel()):
        found[RELEASES] = runtimes.RELEASE
    return found


def _is_on_hub(chosen: Chosen) -> bool:
    files = () if chosen.model is None else CATALOGUE[chosen.model].files
    return any(isinstance(source, HubSource) for file in files for source in file.sources)


def look(places: Mapping[str, str], *, seconds: float = SECONDS) -> tuple[Host, ...]:
    """All at once. Looking up a name may take longer than any timeout says, so nobody waits for it."""
    answers: dict[str, Host] = {}
    places = {what: _without_user(url) for what, url in places.items()}

    if HUB in places and (bar := _bar()) is not None:
        answers[HUB] = Host(HUB, places[HUB], False, bar)

    def ask(what: str, url: str) -> None:
        answers[what] = _ask(what, url, seconds)

    threads = [
        threading.Thread(target=ask, args=place, daemon=True) for place in places.items() if place[0] not in answers
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds + 0.5)
    late = f"no answer within {seconds:g} s"
    return tuple(answers.get(what) or Host(what, url, False, late) for what, url in places.items())


def _bar() -> str | None:
    """Why nobody will ask the hub, whether it answers or not."""
    try:
        hub.remote(next(source for source in CATALOGUE[ALWAYS].weights.sources if isinstance(source, HubSource)))
    except Unreachable as error:
        return error.message
    return None


def _ask(what: str, url: str, seconds: float) -> Host:
    if not url:
        return Host(what, url, False, NO_URL)
    try:
        status = ask_once("HEAD", url, seconds=seconds, most=0).status
    except NoReply as error:
        return Host(what, url, False, error.why)
    return Host(what, url, status < 500, f"answers {status}")


def _without_user(url: str) -> str:
    """Its scheme, host and path, empty for what is no URL. Names and passwords in it are nobody's business, and are
    not sent either."""
    try:
        parts = httpx.URL(url)
    except httpx.InvalidURL:
        return ""
    if parts.scheme not in ("http", "https") or not parts.host:
        return ""
    port = "" if parts.port is None else f":{parts.port}"
    host = f"[{parts.host}]" if ":" in parts.host else parts.host
    return f"{parts.scheme}://{host}{port}{parts.path.rstrip('/')}"
