"""What the experimental image-encoder cache saves: the same build without and with it, and next to sharing prefixes.

    python3 -m tools.benchmark_image_cache --image slide.png [--device ROCm0|cpu]

Six blocks, each with servers of its own, a first request and five more of the same picture and questions:
    off, encoder cache, encoder cache, off      with --image-prefix off: every question reads the picture
    prefix sharing without, with encoder cache  with --image-prefix auto: a request reads it once, and keeps that

Timed is from sending a request until its reply is whole; loading the model and reading files are not in it. Hits and
misses are counted from the server's log. With four workers questions are evaluated together, and then probabilities
move a little from one time to the next, cache or not; with --workers 1 the first reply of every block has to be the
same to the last bit, with the cache and without, and so has every further one ("turn by turn").

The build is the one of scripts/build_image_cache.py, or the folder that JEV_IMAGE_CACHE_BUILD names; LLAMA_SERVER is
not looked at. The ROCm libraries are looked for as ./run_image_cache_gpu.sh does it. Variables: MODEL and MMPROJ
(neither: what `./setup.sh --model vision` fetched); CTX_SIZE (32768), PARALLEL (4), THREADS, BATCH_SIZE and GPU_LAYERS.
A former result and its logs are overwritten. Every process is ended in the end, also after Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from jev_local.backend.embedded import ServerOptions
from jev_local.client import ClientError
from jev_local.inputs import InputError
from jev_local.launch.arguments import port
from jev_local.launch.errors import CannotStart
from jev_local.launch.image_build import CONTEXT, DEFAULT_DEVICE, find_build, require_device, server_settings
from jev_local.launch.image_cache import models
from jev_local.launch.signals import Interruptions
from tools import image_cache_question
from tools.image_cache_blocks import FURTHER, ORDER, Block, CannotMeasure, Setup, measure
from tools.image_cache_progress import Steps
from tools.image_cache_report import WIDTH, Results, environment, show, written

CPU = "cpu"
CPU_OPTION = "--device cpu"
BROKEN, REFUSED, INTERRUPTED = 1, 2, 130


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python3 -m tools.benchmark_image_cache",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="exit codes: 0 measured; 1 ended early, or answers differ with --workers 1; 2 impossible here, and why",
        allow_abbrev=False,
    )
    add = made.add_argument
    add("--image", type=Path, required=True, metavar="FILE", help="a PNG or JPEG of up to 4 MiB")
    add(
        "--input",
        type=Path,
        default=Path("examples/vision_gss_4.json"),
        metavar="JSON",
        help="choice questions (%(default)s)",
    )
    add("--device", default=DEFAULT_DEVICE, metavar="NAME|cpu", help="a GPU as llama-server names it (%(default)s)")
    add("--port", type=port, default=19080, help="for the API (%(default)s)")
    add("--backend-port", type=port, default=19097, help="for the inference server (%(default)s)")
    add("--workers", type=int, default=4, metavar="N", help="questions in flight at most (%(default)s)")
    add("--output", type=Path, default=Path("results/image_cache_benchmark.json"), metavar="FILE", help="%(default)s")
    return made


def prepare(parsed: argparse.Namespace, variables: Mapping[str, str]) -> Setup:
    """CannotStart says what stands against measuring here. Nothing has been started or written by then."""
    device = None if parsed.device == CPU else parsed.device
    build = find_build(variables, cpu=device is None, cpu_option=CPU_OPTION)
    model, projector = models(variables)
    context = variables.get("CTX_SIZE") or CONTEXT
    settings = server_settings({**variables, "JEV_IMAGE_CACHE_MIB": "0"}, build, device=device, context=context)
    try:
        options = ServerOptions.from_environment(
            settings,
            model=model,
            mmproj=projector,
            port=parsed.backend_port,
            slot_dir=Path(tempfile.gettempdir()),  # every block puts one of its own in its place
        )
    except ValueError as error:
        raise CannotStart(str(error), code=2) from error
    made = Setup(build, settings, options, parsed.port, parsed.workers, parsed.output.with_suffix(""))
    made.require_free()
    require_device(build, settings, cpu_option=CPU_OPTION)
    return made


def run(setup: Setup, body: bytes, results: Results, console: Console) -> None:
    """Every block in turn, into `results` as it comes."""
    with Steps(len(ORDER) * (FURTHER + 2), console) as steps:
        for number, condition in enumerate(ORDER, start=1):
            steps.at(f"block {number} of {len(ORDER)}, {condition.name}")
            block = Block(condition, load=os.getloadavg()[0])
            results.blocks.append(block)
            measure(setup, block, number, body, step=steps.step)


def main() -> int:
    command = parser()
    parsed = command.parse_args()
    if parsed.workers < 1:
        command.error("--workers has to be at least 1")
    try:
        question = image_cache_question.read(parsed.input, parsed.image)
        setup = prepare(parsed, os.environ)
        parsed.output.parent.mkdir(parents=True, exist_ok=True)
        setup.delete_logs()
        results = Results(setup.workers, environment(setup, question))
    except (InputError, OSError) as error:
        command.error(str(error))
    except CannotStart as reason:
        print(reason.message, file=sys.stderr)
        return REFUSED
    code = 0
    try:
        with Interruptions():
            run(setup, question.body, results, Console(stderr=True, highlight=False))
    except CannotStart as reason:
        results.note, code = reason.message, reason.code
    except CannotMeasure as reason:
        results.note, code = str(reason), BROKEN
    except (ClientError, OSError) as error:
        results.note, code = f"Ended early: {error}", BROKEN
    except KeyboardInterrupt:
        results.note, code = "Interrupted: only what was measured until then.", INTERRUPTED
    parsed.output.write_text(json.dumps(written(results), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH)
    show(results, console)
    if results.note:
        print(results.note, file=sys.stderr)
    console.print(f"everything: {parsed.output}, and beside it the servers' logs", markup=False, soft_wrap=True)
    return code or (BROKEN if results.summary().faults else 0)


if __name__ == "__main__":
    sys.exit(main())
