"""Whether the places can be reached that something missing would be fetched from."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import httpx

from jev_local.doctor.facts import Chosen, Host
from jev_local.launch import runtimes
from jev_local.launch.intended import has_wheel

SECONDS = 3.0
HUB = "https://huggingface.co"


def wanted(chosen: Chosen, environment: Mapping[str, str]) -> dict[str, str]:
    """Name -> URL of those that are needed for what is chosen and missing."""
    found = {}
    if chosen.model is not None and chosen.missing:
        found["Hugging Face"] = environment.get("HF_ENDPOINT") or HUB
    if chosen.gpus_trouble is not None or (chosen.server is None and not has_wheel()):
        found["llama.cpp releases"] = runtimes.RELEASE
    return found


def look(places: Mapping[str, str], *, seconds: float = SECONDS) -> tuple[Host, ...]:
    """All at once. Looking up a name may take longer than any timeout says, so nobody waits for it."""
    answers: dict[str, Host] = {}

    def ask(what: str, url: str) -> None:
        answers[what] = _ask(what, url, seconds)

    threads = [threading.Thread(target=ask, args=place, daemon=True) for place in places.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds + 0.5)
    late = f"no answer within {seconds:g} s"
    return tuple(answers.get(what) or Host(what, url, False, late) for what, url in places.items())


def _ask(what: str, url: str, seconds: float) -> Host:
    try:
        status = httpx.head(url, timeout=seconds).status_code
    except httpx.TimeoutException:
        return Host(what, url, False, f"no answer within {seconds:g} s")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return Host(what, url, False, str(error).rpartition("] ")[2] or type(error).__name__)
    return Host(what, url, status < 500, f"answers {status}")
