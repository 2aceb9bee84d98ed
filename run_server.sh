#!/bin/sh
# The inference server alone. What it takes: ./run_server.sh --help
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
exec python3 "$here/scripts/bootstrap.py" local -- -P -m jev_local backend "$@"
