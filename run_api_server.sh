#!/bin/sh
# The API alone, in front of an inference server that runs already. What it takes: ./run_api_server.sh --help
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
exec python3 "$here/scripts/bootstrap.py" local -- -P -m jev_local serve "$@"
