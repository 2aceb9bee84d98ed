#!/bin/sh
# Everything: the model, the inference server, the API and a first answer. What it takes: ./run.sh --help
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
exec python3 "$here/scripts/bootstrap.py" local -- -P -m jev_local up "$@"
