"""The llama-server that a tool measures, and the folder that it saves its slots in."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import httpx

from jev_local.launch.home import absolute, home
from jev_local.settings import DEFAULT_BACKEND_URL

NO_SERVER = 3
"""Exit code where no llama-server answers."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """--backend-url and --slot-cache-dir, as `jev-local serve` has them."""
    parser.add_argument(
        "--backend-url", default=DEFAULT_BACKEND_URL, metavar="URL", help="a running llama-server (%(default)s)"
    )
    parser.add_argument(
        "--slot-cache-dir",
        metavar="PATH",
        help="the folder that this llama-server saves its slots in (SLOT_CACHE_DIR, else .cache/slots)",
    )


def slot_folder(named: str | None) -> Path:
    """What `--slot-cache-dir` names, or the default of `jev-local serve`."""
    return absolute(named, setting="--slot-cache-dir") if named else home().slot_path()


def is_ready(url: str) -> bool:
    """Whether a llama-server with a loaded model answers at `url`; else one line says what to do."""
    try:
        httpx.get(f"{url}/health", trust_env=False, timeout=10).raise_for_status()
    except (httpx.HTTPError, httpx.InvalidURL):
        print(f"No llama-server is ready at {url}. ./run_server.sh starts one.", file=sys.stderr)
        return False
    return True
