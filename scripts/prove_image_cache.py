"""Builds llama-server with and without the image-embedding cache, on CPU, and shows that the cache keeps its promises.

    python3 scripts/prove_image_cache.py --jobs 2 --source ~/llama.cpp-b11042

Takes some minutes of compiling the first time, then one minute. Models are made here: tiny LFM2-VL ones of random
weights, which take the whole way of the real ones. The result is a Markdown table on standard output, for
docs/image-cache.md; everything else goes to standard error. Exit code 1 when anything came otherwise than it had to.
"""

from __future__ import annotations

import sys
from pathlib import Path

from bootstrap import continue_in_venv
from build_image_cache import FOLDER, options

WORK = FOLDER.with_name("vision-proof")


def main() -> int:
    """See the head of this file."""
    wishes = options("prove_image_cache.py", __doc__ or "").parse_args()
    continue_in_venv("local", "test")
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))  # the models come from there
    from image_cache.building import told  # noqa: PLC0415  # they need what is in .venv
    from image_cache.proof import prove  # noqa: PLC0415

    return told("prove_image_cache", lambda: prove(FOLDER, WORK, jobs=wishes.jobs, source=wishes.source))


if __name__ == "__main__":
    sys.exit(main())
