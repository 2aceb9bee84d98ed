"""The import graph: pointing down only, and foreign packages kept in their rooms.

    serve, cli -> app, client -> engine | wire -> backend.port -> core -> errors

`launch` stands above them all, and `doctor` looks at it from the side; only `systemone doctor` takes it along.

A module that this file does not know fails the first test: decide where it lives before it grows.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import jev_local

ROOT = Path(jev_local.__file__).parent
PACKAGE = "jev_local"

ROOMS: dict[str, tuple[str, ...]] = {
    "base": ("", "called", "errors", "settings", "threads"),
    "core": ("core",),
    "port": ("backend", "backend.port", "backend.probe", "backend.trials"),
    # Only the composition root knows that there is a llama-server ...
    "llama": ("backend.llama", "backend.dialect", "backend.relayed", "backend.transport", "backend.written"),
    # What both of them know of a server that we start.
    "tags": ("backend.tags",),
    # ... and only the launcher that one comes with the package.
    "embedded": ("backend.embedded", "backend.child", "backend.devices"),
    "engine": ("engine",),
    "wire": ("wire",),
    "app": ("app", "web"),
    "client": ("client", "exchange", "line", "explained", "received", "inputs"),
    "screen": ("rows", "safe_text", "terminal"),
    "cli": ("cli", "cli_arguments", "cli_explain", "output_file"),
    # Looks at everything and starts nothing.
    "doctor": ("doctor",),
    "serve": ("serve",),
    "launch": ("launch",),
    "main": ("__main__",),
}
"""Room -> its modules, a package standing for everything in it that is not named on its own."""

MAY_IMPORT: dict[str, set[str]] = {
    "base": {"base"},
    "core": {"core", "base"},
    "port": {"port", "core", "base"},
    "llama": {"llama", "tags", "port", "core", "base"},
    "tags": {"tags"},
    "embedded": {"embedded", "tags", "base"},
    "engine": {"engine", "port", "core", "base"},
    "wire": {"wire", "core", "base"},
    "app": {"app", "engine", "wire", "core", "base"},
    "client": {"client", "wire", "base"},
    "screen": {"screen", "client", "wire", "base"},
    "cli": {"cli", "doctor", "screen", "client", "wire", "base"},
    "doctor": {"doctor", "launch", "embedded", "tags", "screen", "client", "wire", "core", "base"},
    "serve": {"serve", "app", "engine", "llama", "port", "core", "base"},
    "launch": {"launch", "embedded", "wire", "base"},
    "main": set(ROOMS),
}

ONLY_IN: dict[str, set[str]] = {
    "fastapi": {"app"},
    "starlette": {"app"},
    "uvicorn": {"serve", "launch", "app"},  # app: web.malformed answers what never reaches an app
    "pydantic": {"wire", "app"},
    "zstandard": {"wire"},
    "PIL": {"wire"},
    "python_multipart": {"wire"},
    "httpx": {"llama", "client", "launch", "doctor"},
    "rich": {"screen", "cli", "launch"},
    "filelock": {"launch", "engine"},
    "huggingface_hub": {"launch"},
    "xllamacpp": {"embedded"},
}
"""Foreign package -> the rooms that may know it."""

# Core is plain values: what waits, reads a clock or touches a file is the engine's.
IMPURE = {
    "asyncio", "concurrent", "datetime", "io", "logging", "os", "pathlib", "random", "secrets", "shutil", "signal",
    "socket", "subprocess", "sys", "tempfile", "threading", "time", "urllib", "uuid",
}  # fmt: skip


def modules() -> dict[str, Path]:
    """Dotted name below the package ("" for the package itself) -> file."""
    found = {}
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def room(module: str) -> str:
    names = module.split(".")
    for length in range(len(names), 0, -1):
        prefix = ".".join(names[:length])
        for name, members in ROOMS.items():
            if prefix in members:
                return name
    raise AssertionError(f"{PACKAGE}.{module} has no room: give it one in {Path(__file__).name}")


def imports(path: Path) -> Iterator[str]:
    """Absolute dotted names, also those inside functions and under TYPE_CHECKING."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide where they point"
            assert node.module is not None
            yield node.module
            # `from package import module` names a module in its second half.
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def edges() -> Iterator[tuple[str, str]]:
    known = modules()
    for module, path in known.items():
        for name in imports(path):
            if name == PACKAGE or name.startswith(f"{PACKAGE}."):
                target = name.removeprefix(PACKAGE).removeprefix(".")
                if target in known:
                    yield module, target


def test_every_module_has_a_room() -> None:
    assert {room(module) for module in modules()} <= set(ROOMS)


def test_imports_point_down() -> None:
    wrong = {
        f"{module or PACKAGE} ({room(module)}) imports {target} ({room(target)})"
        for module, target in edges()
        # A package's own __init__ comes along with each of its modules and is part of no other room's business.
        if room(target) not in MAY_IMPORT[room(module)]
        and not module.startswith(f"{target}.")
        and target not in ("", "backend")
    }
    assert not wrong, "\n".join(sorted(wrong))


def test_nothing_but_the_doctor_imports_the_launcher() -> None:
    assert {room(module) for module, target in edges() if room(target) == "launch"} <= {"launch", "doctor", "main"}


def test_the_command_line_takes_the_doctor_along_only_when_it_is_called() -> None:
    at_the_top = {
        module
        for module, path in modules().items()
        if room(module) == "cli"
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith(f"{PACKAGE}.doctor.")
    }
    assert not at_the_top


def test_llama_server_is_known_to_the_composition_root_alone() -> None:
    assert {module for module, target in edges() if target == "backend.llama"} <= {"serve"}


def test_packages_stay_in_their_rooms() -> None:
    wrong = {
        f"{module} ({room(module)}) imports {name}"
        for module, path in modules().items()
        for name in imports(path)
        if (top := name.partition(".")[0]) in ONLY_IN and room(module) not in ONLY_IN[top]
    }
    assert not wrong, "\n".join(sorted(wrong))


def test_core_is_pure() -> None:
    wrong = {
        f"{module} imports {name}"
        for module, path in modules().items()
        if room(module) == "core"
        for name in imports(path)
        if name.partition(".")[0] in IMPURE
    }
    assert not wrong, "\n".join(sorted(wrong))


def test_no_module_is_longer_than_300_lines() -> None:
    long = {module: count for module, path in modules().items() if (count := _lines(path)) > 300}
    assert not long


def _lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())
