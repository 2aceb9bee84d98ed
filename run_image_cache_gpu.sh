#!/bin/sh
# The servers with the experimental image-encoder cache. What it takes: ./run_image_cache_gpu.sh --help
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
exec python3 "$here/scripts/bootstrap.py" local -- -P -m jev_local.launch.image_cache "$@"
