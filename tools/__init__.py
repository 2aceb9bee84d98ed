"""Programs beside the product: `python3 -m tools.NAME --help`.

Started with a Python that lacks the modules, they go on in .venv, and make it when it is not there.
"""

import os
import sys

if sys.argv[0] == "-m":  # only while `python -m tools.NAME` is being found, never for an import
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "scripts"))
    from bootstrap import continue_in_venv

    sys.path.pop(0)
    continue_in_venv()
