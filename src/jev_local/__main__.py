"""`jev-local`: start what answers. (`systemone` asks it.)"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from jev_local.called import called
from jev_local.launch.arguments import add_api_options, api_settings, parse, size_text
from jev_local.launch.errors import CannotStart
from jev_local.launch.exposure import warning
from jev_local.launch.home import home
from jev_local.launch.progress import forget, murmur, say
from jev_local.safe_text import clean
from jev_local.settings import DEFAULT_KEY, ApiSettings

if TYPE_CHECKING:
    from jev_local.launch.inference import InferenceServer


def main(argv: Sequence[str] | None = None) -> int:
    """Run `jev-local` with `argv` (default: the command line) and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    own, for_api = _split(arguments)
    parsed = parse(own)
    if for_api and parsed.command != "up":
        parsed.complain(f"only `{called('up')}` passes on what follows --")
    try:
        if parsed.command == "up":
            return _up(parsed, for_api)
        return {"backend": _backend, "setup": _setup, "serve": _serve}[parsed.command](parsed)
    except CannotStart as reason:
        murmur(f"jev-local: {reason.message}")
        return reason.code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `./run.sh | head`: nobody reads on
        forget(sys.stdout)
        return 141  # what shells say of a program that SIGPIPE ended


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """What stands before the first --, and what follows it."""
    at = arguments.index("--") if "--" in arguments else len(arguments)
    return arguments[:at], arguments[at + 1 :]


def _up(parsed: argparse.Namespace, for_api: list[str]) -> int:
    from jev_local.launch import up  # noqa: PLC0415  # --help stays quick

    backend_url = f"http://127.0.0.1:{parsed.backend_port}"
    words = ["--backend-url", backend_url, "--port", str(parsed.port)]
    words += ["--slot-cache-dir", str(home().slot_path())]
    if named := os.environ.get("CHAT_SLOTS"):  # of the inference server, whose slots they are
        words += ["--chat-slots", named]
    words += for_api
    api = argparse.ArgumentParser(
        prog=f"{called('up')} --", epilog=f"These go to the API: see {called('serve')} --help.", allow_abbrev=False
    )
    add_api_options(api)
    wishes = up.Wishes(
        api=api_settings(api.parse_args(words), os.environ),
        api_arguments=tuple(words),
        once=parsed.once,
        demo=parsed.demo,
    )
    if wishes.api.backend_url != backend_url:
        raise CannotStart(
            f"`up` starts an inference server of its own: take `{called('serve')}` to use the one at --backend-url",
            code=2,
        )
    if wishes.api.port == parsed.backend_port:
        raise CannotStart(f"the API and the inference server cannot both have port {wishes.api.port}", code=2)
    plan = _plan(parsed, parsed.backend_port, "--backend-port", to_terminal=False, chat_slots=wishes.api.chat_slots)
    return up.run(plan, wishes, demo=_demo)


def _demo(url: str) -> int:
    from jev_local.cli import main as ask  # noqa: PLC0415
    from jev_local.launch.up import DEMO_SECONDS  # noqa: PLC0415

    return ask(["ask", "--url", url, "--timeout", str(DEMO_SECONDS)])


def _backend(parsed: argparse.Namespace) -> int:
    from jev_local.launch import foreground  # noqa: PLC0415

    return foreground.run(_plan(parsed, parsed.port, "--port", to_terminal=True))


def _setup(parsed: argparse.Namespace) -> int:
    from jev_local.launch import setup  # noqa: PLC0415

    wishes = setup.Wishes(
        model=parsed.model, backend=parsed.backend, model_only=parsed.model_only, dry_run=parsed.dry_run
    )
    return setup.run(wishes, os.environ, home())


def _plan(
    parsed: argparse.Namespace, port: int, port_option: str, *, to_terminal: bool, chat_slots: int | None = None
) -> InferenceServer:
    from jev_local.launch.inference import InferenceServer  # noqa: PLC0415

    return InferenceServer.plan(
        os.environ,
        home(),
        wish=parsed.model,
        mmproj=parsed.mmproj,
        port=port,
        port_option=port_option,
        to_terminal=to_terminal,
        chat_slots=chat_slots,
    )


def _serve(parsed: argparse.Namespace) -> int:
    from jev_local import serve  # noqa: PLC0415

    settings = api_settings(parsed, os.environ)
    say(in_force(settings, os.environ))
    if (line := warning(settings)) is not None:
        murmur(line)
    try:
        return serve.run(settings)
    except KeyboardInterrupt:  # uvicorn ends well and then raises the signal once more
        return 0


def in_force(settings: ApiSettings, environment: Mapping[str, str]) -> str:
    """The API's settings as they are, the key only by where it is from."""
    if not settings.key:
        key = "none, anybody who can reach the port may ask"
    elif settings.key == DEFAULT_KEY and "JEV_API_KEY" not in environment:
        key = f"default {DEFAULT_KEY}"
    else:
        key = "from JEV_API_KEY"
    return "\n".join(
        (
            f"API http://{settings.host}:{settings.port}",
            f"  key: {key}",
            f"  --backend-url         {settings.backend_url}",
            f"  --workers             {settings.workers}",
            f"  --max-in-flight       {settings.max_in_flight}",
            f"  --backend-timeout     {settings.backend_timeout:g}",
            f"  --chat-slots          {settings.chat_slots}",
            f"  --details             {'on' if settings.details else 'off'}",
            f"  --state-cache         {settings.state_cache}",
            f"  --cache-min-tokens    {settings.cache_min_tokens}",
            f"  --image-prefix        {settings.image_prefix}",
            f"  --max-image-pixels    {settings.max_image_pixels}",
            f"  --slot-cache-dir      {clean(str(settings.slot_cache_dir or 'none'))}",
            f"  --prefix-cache-bytes  {size_text(settings.prefix_cache_bytes)}",
            f"  --prefill-chunk       {settings.prefill_chunk}",
            f"  --stable              {'on' if settings.stable else 'off'}",
        )
    )


if __name__ == "__main__":
    sys.exit(main())
