#!/bin/sh
# A real model and a llama-server that suits this machine. What it takes: ./setup.sh --help
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
exec python3 "$here/scripts/bootstrap.py" local -- -P -m jev_local setup "$@"
