"""A stand-in for a build of the experimental llama-server: the wheel's server behind the flags of the real one."""

import hashlib
import json
import sys
from pathlib import Path

SERVING = """
import json, os, sys
value = dict(zip(sys.argv[1:], sys.argv[2:]))
print("native server", *sys.argv[1:], flush=True)
print(*(name + "=" + os.environ.get(name, "") for name in ("LD_LIBRARY_PATH", "JEV_IMAGE_CACHE_MIB")), flush=True)
from jev_local.backend import child
options = dict(model=value["--model"], mmproj=value["--mmproj"], port=int(value["--port"]))
options |= dict(slot_dir=value["--slot-save-path"], context=int(value["--ctx-size"]), threads=1)
sys.exit(child.main([json.dumps(options)]))
"""
"""A program that is started as llama-server is, and serves."""

SERVER = (
    """#!{python}
import sys
if sys.argv[1:] == ["--list-devices"]:
    print("Available devices:\\n  ROCm0: A stand-in (1024 MiB, 1000 MiB free)\\n  ROCm1: Another (1 MiB, 1 MiB free)")
    sys.exit()
print({says!r}, flush=True)
"""
    + SERVING
)


def stand_in(folder: Path, *, backend: str, says: str = "") -> Path:
    """A build in `folder`, whose server writes `says` into its log when it starts. Two GPUs are seen."""
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    contents = {"llama-server": SERVER.format(python=sys.executable, says=says), "libmtmd.so.0": "a library"}
    for name, content in contents.items():
        path = folder / "bin" / name
        path.write_text(content)
        path.chmod(0o755)
    files = {f"bin/{name}": hashlib.sha256(content.encode()).hexdigest() for name, content in contents.items()}
    (folder / "jev-build.json").write_text(json.dumps({"backend": backend, "files": files}))
    return folder
