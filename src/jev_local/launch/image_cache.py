"""`run_image_cache_gpu.sh`: `jev-local up` with the experimental llama-server that encodes every picture once.

Everything is checked and put into variables here, and then this process becomes `jev-local up`: there is one way to
start, supervise and end two servers.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from jev_local.called import called
from jev_local.launch import image_lookups
from jev_local.launch.arguments import add_api_options, port
from jev_local.launch.errors import CannotStart
from jev_local.launch.fetch import is_verified
from jev_local.launch.home import absolute, home
from jev_local.launch.image_build import (
    CONTEXT,
    DEFAULT_DEVICE,
    NO_DEVICE,
    find_build,
    limit,
    require_device,
    server_settings,
)
from jev_local.launch.inference import InferenceServer
from jev_local.launch.models import VISION, require_gguf
from jev_local.launch.ports import require_free
from jev_local.launch.progress import say
from jev_local.launch.readiness import ask

PROGRAM = "run_image_cache_gpu.sh"
API_PORT, BACKEND_PORT = 18080, 18097
HOST = "127.0.0.1"

ABOUT = """\
An experiment: both servers, with a llama-server that keeps what the image encoder of an LFM2 vision model gave, so
that a picture is encoded once and not once a question. Four questions about a new picture are 1 miss and 3 hits; the
same picture again is 4 hits. The picture is still read by the language model for every question: sharing that, which
needs no special build, is --image-prefix auto, and is off here so that the cache can be seen at work.
"""

EPILOG = f"""\
examples:
  python3 scripts/build_image_cache.py --jobs 8       first, once: the build (--backend cpu for one without a GPU)
  ./setup.sh --model vision              the model, once (or MODEL and MMPROJ name files of yours)
  ./{PROGRAM}                            until Ctrl-C; in another terminal:
  python3 systemone_client.py --url http://127.0.0.1:{API_PORT} \\
      --input examples/vision_gss_4.json --image sample_pics/slide.png
  ./{PROGRAM} --status                   hits and misses so far; starts nothing
  JEV_IMAGE_CACHE_MIB=0 ./{PROGRAM}      the same build without the cache, to compare
  ./{PROGRAM} --cpu                      without a GPU
  ./{PROGRAM} -- --image-prefix auto     what follows -- goes to the API: ./run_api_server.sh --help

variables:
  MODEL, MMPROJ         the vision model and its projector (.gguf); neither: what `setup --model vision` fetched
  JEV_IMAGE_CACHE_MIB   room for pictures and what was made of them, 0 to 4096 (128); 0: no cache
  GPU_DEVICE            which GPU ({DEFAULT_DEVICE})
  ROCM_LIBRARY_DIR      folder of the ROCm libraries (LM Studio's, if they are there; else the system's)
  CTX_SIZE              tokens of context shared by all slots ({CONTEXT})
  JEV_IMAGE_CACHE_BUILD folder of the build (.cache/vision-build-gcc)
and PARALLEL, CHAT_SLOTS (here 0), BATCH_SIZE, THREADS, GPU_LAYERS, SLOT_CACHE_DIR, JEV_HOME, JEV_API_KEY as for
./run.sh.
"""


@dataclass(frozen=True, slots=True)
class Start:
    """A process to become, and the log of the inference server that it starts."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    log: Path
    limit: int
    told: str


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog=PROGRAM,
        description=ABOUT,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        usage="%(prog)s [options] [-- options of the API]",
    )
    made.add_argument("--port", type=port, default=API_PORT, help="port of the API (%(default)s)")
    made.add_argument("--backend-port", type=port, default=BACKEND_PORT, help="of the inference server (%(default)s)")
    made.add_argument("--model", metavar="PATH", help="a vision model, .gguf (MODEL, else what set-up fetched)")
    made.add_argument("--mmproj", metavar="PATH", help="its projector, .gguf (MMPROJ, else what set-up fetched)")
    made.add_argument("--cpu", action="store_true", help="no GPU; every build can do that")
    made.add_argument("--status", action="store_true", help="show hits and misses of that inference server, and end")
    return made


def plan(parsed: argparse.Namespace, for_api: Sequence[str], environment: Mapping[str, str]) -> Start:
    """Everything checked that can be checked without the model, so that a start that cannot be leaves the log of the
    last one as it is. CannotStart says what is wrong."""
    size = limit(environment)
    cpu = parsed.cpu or environment.get("GPU_DEVICE") == NO_DEVICE
    build = find_build(environment, cpu=cpu, cpu_option="--cpu")
    model, projector = models(environment, model=parsed.model, mmproj=parsed.mmproj)
    settings = server_settings(
        environment,
        build,
        device=None if cpu else environment.get("GPU_DEVICE") or DEFAULT_DEVICE,
        context=environment.get("CTX_SIZE") or CONTEXT,
    )
    _require_sense(for_api)
    if parsed.port == parsed.backend_port:
        raise CannotStart(f"the API and the inference server cannot both have port {parsed.port}", code=2)
    require_free(HOST, parsed.port, option="--port")
    InferenceServer.plan(
        settings,
        home(environment),
        wish=str(model),
        mmproj=str(projector),
        port=parsed.backend_port,
        port_option="--backend-port",
        to_terminal=False,
    )
    require_device(build, settings, cpu_option="--cpu")
    words = ["up", "--no-demo", "--port", str(parsed.port), "--backend-port", str(parsed.backend_port)]
    words += ["--model", str(model), "--mmproj", str(projector)]
    return Start(
        argv=(sys.executable, "-P", "-m", "jev_local", *words, "--", "--image-prefix", "off", *for_api),
        environment=settings,
        log=home(environment).log(parsed.backend_port),
        limit=size,
        told="\n".join(
            (
                "Image-encoder cache (an experiment)",
                f"  JEV_IMAGE_CACHE_MIB  {size}{'' if size else ': no cache'}",
                f"  build                {build.backend}, {build.version}",
                f"  LD_LIBRARY_PATH      {settings.get('LD_LIBRARY_PATH') or 'not set'}",
                f"  hits and misses      ./{PROGRAM} --status --backend-port {parsed.backend_port}",
            )
        ),
    )


def _require_sense(for_api: Sequence[str]) -> None:
    """Ends the program, as argparse does, for options that the API does not have."""
    api = argparse.ArgumentParser(
        prog=f"{PROGRAM} --", epilog="These go to the API: see ./run_api_server.sh --help.", allow_abbrev=False
    )
    add_api_options(api)
    api.parse_args(list(for_api))


def models(environment: Mapping[str, str], *, model: str | None = None, mmproj: str | None = None) -> tuple[Path, Path]:
    """The two files that seeing takes; options before variables, and where neither says anything, what
    `setup --model vision` fetched."""
    named = model or environment.get("MODEL"), mmproj or environment.get("MMPROJ")
    if named == (None, None) and (fetched := _fetched(environment)) is not None:
        return fetched
    found = []
    for path, variable, what in zip(named, ("MODEL", "MMPROJ"), ("model", "projector"), strict=True):
        if not path:
            raise CannotStart(
                f"a vision model is two files, and the {what} is missing: set {variable} to its .gguf (of LFM2-VL or "
                f"LFM2.5-VL), or leave both out and fetch one with {called('setup')} --model vision",
                code=2,
            )
        found.append(require_gguf(absolute(path, setting=variable), what))
    return found[0], found[1]


def _fetched(environment: Mapping[str, str]) -> tuple[Path, Path] | None:
    folder = home(environment).models
    if not all(is_verified(pinned, folder / pinned.file) for pinned in VISION.files):
        return None
    weights, projector = (folder / pinned.file for pinned in VISION.files)
    return weights, projector


def status(environment: Mapping[str, str], backend_port: int) -> str:
    """What the log of that inference server tells. Starts nothing and writes nothing."""
    log = home(environment).log(backend_port)
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError as error:
        raise CannotStart(
            f"no inference server has written a log for port {backend_port} ({log}): start one with ./{PROGRAM}, or "
            "name its port with --backend-port"
        ) from error
    except OSError as error:
        raise CannotStart(f"cannot read {log}: {error.strerror}") from error
    running = ask(f"http://{HOST}:{backend_port}/health")[0] != 0
    return image_lookups.report(text, port=backend_port, log=log, running=running)


def main(argv: Sequence[str] | None = None) -> int:
    """Becomes `jev-local up`, or gives an exit code: 2 where the command line or a setting has to change."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    at = arguments.index("--") if "--" in arguments else len(arguments)
    parsed = parser().parse_args(arguments[:at])
    try:
        if parsed.status:
            print(status(os.environ, parsed.backend_port))
            return 0
        become(plan(parsed, arguments[at + 1 :], os.environ))
    except CannotStart as reason:
        print(f"{PROGRAM}: {reason.message}", file=sys.stderr)
        return reason.code
    except OSError as error:
        print(f"{PROGRAM}: {error.filename or 'standard output'}: {error.strerror}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def become(start: Start) -> NoReturn:
    """From here on this process is `jev-local up`."""
    home().make()
    image_lookups.mark_start(start.log, start.limit)
    say(start.told)
    os.execve(start.argv[0], start.argv, dict(start.environment))  # noqa: S606  # no shell is wanted


if __name__ == "__main__":
    sys.exit(main())
