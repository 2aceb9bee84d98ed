"""Puts `scripts` on the path: these tests import what its programs import."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
