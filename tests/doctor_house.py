"""A home of its own for the doctor to look around, of any kind."""

from __future__ import annotations

import json
import os
from pathlib import Path

from jev_local.doctor import examine, layout
from jev_local.doctor.facts import Facts, Step
from programs import free_port

Looked = tuple[Facts, Step]


class House:
    """A JEV_HOME, and a look around it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.models, self.cache = root / "models", root / "cache"
        self.environment = {"JEV_HOME": str(root), "PATH": os.environ["PATH"]}
        self.url = f"http://127.0.0.1:{free_port()}"
        self.backend_url = f"http://127.0.0.1:{free_port()}"
        self.key = "sesame"

    def put(self, path: Path, content: bytes) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    def look(self, **environment: str) -> Looked:
        wishes = examine.Wishes(url=self.url, backend_url=self.backend_url, key=self.key, timeout=5)
        before = self.everything()
        found = examine.examine(wishes, self.environment | environment)
        assert self.everything() == before
        json.dumps(layout.document(*found))
        layout.text(*found, "utf-8")
        return found

    def everything(self) -> dict[str, tuple[int, int]]:
        if not os.path.isdir(self.root):
            return {}
        return {str(path): (path.lstat().st_size, path.lstat().st_mtime_ns) for path in self.root.rglob("*")}
