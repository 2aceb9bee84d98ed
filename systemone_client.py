"""`python3 systemone_client.py ...` is `systemone ...` without installing anything first: see --help."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "scripts"))
from bootstrap import continue_in_venv

if __name__ == "__main__":
    continue_in_venv()
    from jev_local.cli import main

    sys.exit(main(sys.argv[1:]))
