"""Builds llama-server with the image-embedding cache, an experiment, into .cache/vision-build-gcc.

    python3 scripts/build_image_cache.py --jobs 8
    python3 scripts/build_image_cache.py --jobs 8 --backend cpu --source ~/llama.cpp-b11042

Needs Linux on x86_64, GCC (g++ with C++17), CMake 3.18 or newer, and Ninja; CC, CXX, CMAKE and NINJA name others than
the usual ones. Nothing is installed. Sources, and for ROCm the official GPU plugin, come from GitHub and are checked
by SHA-256 (native/source.json); --source takes an unpacked tree or a .tar.gz that is there already, and is only read.

Run again, it does only what is left to do; after an interruption too. The result is bin/llama-server with its libraries
beside it, and jev-build.json, which says what it was made from and has the SHA-256 of every file.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bootstrap import continue_in_venv

FOLDER = Path(__file__).resolve().parents[1] / ".cache" / "vision-build-gcc"


def options(program: str, about: str) -> argparse.ArgumentParser:
    """--jobs and --source, and `about` as the help."""
    title, _, text = about.partition("\n\n")
    parser = argparse.ArgumentParser(
        prog=program, description=title, epilog=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=_jobs, required=True, metavar="N", help="files to compile at the same time")
    parser.add_argument(
        "--source", type=Path, metavar="PATH", help="a llama.cpp tree of b11042 (b11040, b11046), or a .tar.gz of one"
    )
    return parser


def _jobs(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text} is not a number of jobs")
    return int(text)


def main() -> int:
    """See the head of this file."""
    parser = options("build_image_cache.py", __doc__ or "")
    parser.add_argument("--backend", choices=("rocm", "cpu"), default="rocm", help="where models run (%(default)s)")
    wishes = parser.parse_args()  # before the rest: --help needs no environment
    continue_in_venv()
    from image_cache.building import build, told  # noqa: PLC0415  # they need what is in .venv

    def work() -> int:
        build(FOLDER, jobs=wishes.jobs, backend=wishes.backend, source=wishes.source)
        return 0

    return told("build_image_cache", work)


if __name__ == "__main__":
    sys.exit(main())
