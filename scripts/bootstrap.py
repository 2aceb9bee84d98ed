"""Makes .venv in the checkout, and continues in it.

    python3 scripts/bootstrap.py [EXTRAS]              prints the path of a Python that has everything
    python3 scripts/bootstrap.py [EXTRAS] -- ARGS...   becomes that Python, with ARGS

EXTRAS is a comma-separated list, `local` if left out. Programs of the checkout call `continue_in_venv()` first.

Standard library only. This file and watched.py have to *parse* on any Python 3, because an old one is told so here: no
f-strings, no `X | None`, nothing newer than Python 3.5 outside functions that run on 3.11.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from typing import Callable, Dict, Iterator, List, Optional, Sequence, Tuple

import watched

MINIMUM = (3, 11)
NEWER = ("python3.13", "python3.12", "python3.11", "python3.14")
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
VENV = os.path.join(ROOT, ".venv")
PYTHON = os.path.join(VENV, "bin", "python")
STAMP = os.path.join(VENV, "jev-stamp.json")  # written last: an interrupted set-up has none
CACHE = os.path.join(ROOT, ".cache")
UNFINISHED = os.path.join(CACHE, "setup-unfinished")
LOG = os.path.join(CACHE, "setup.log")  # everything that the command which failed last had said

NO_NETWORK = re.compile(
    r"name resolution|getaddrinfo|NewConnectionError|Network is unreachable|Connection refused|timed out|"
    r"ConnectTimeout|ProxyError|Max retries",
    re.IGNORECASE,
)
NOT_FOUND = re.compile(r"No matching distribution found for ([^\s;]+)")


class SetupFailed(Exception):
    """One line for the person at the terminal: what is wrong and what to do."""


def require_python(arguments: Optional[Sequence[str]]) -> None:
    """Return if this Python is new enough; else become a newer one from PATH, or say what is needed."""
    if sys.version_info[:2] >= MINIMUM:
        return
    newer = newer_python()
    if newer is not None and arguments is not None:
        say("Python %d.%d is too old for this, going on with %s" % (sys.version_info[0], sys.version_info[1], newer))
        become(newer, arguments)
    raise SetupFailed(too_old(sys.version_info[:2], newer))


def too_old(version: Tuple[int, ...], newer: Optional[str]) -> str:
    return "This is Python %d.%d, and Python %d.%d or newer is needed: %s" % (
        version[0],
        version[1],
        MINIMUM[0],
        MINIMUM[1],
        "install one from your system's packages" if newer is None else "start this with " + newer,
    )


def newer_python() -> Optional[str]:
    """A Python on PATH that is new enough. Each is asked: a version manager's shim exists without one behind it."""
    question = "import sys; sys.exit(sys.version_info[:2] < (%d, %d))" % MINIMUM
    for name in NEWER:
        found = shutil.which(name)
        if not found:
            continue
        if subprocess.call([found, "-c", question], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) == 0:
            return found
    return None


def original_arguments() -> Optional[List[str]]:
    """What followed the interpreter on its command line; before Python 3.10 only Linux can tell."""
    known = getattr(sys, "orig_argv", None)
    if known is not None:
        return list(known[1:])
    try:
        with open("/proc/self/cmdline", "rb") as file:
            return [os.fsdecode(part) for part in file.read().split(b"\0")[1:-1]]
    except OSError:
        return None


def become(python: str, arguments: Sequence[str]) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(python, [python, *arguments])  # noqa: S606  # no shell is wanted


def wanted(extras: Sequence[str]) -> Dict[str, object]:
    """What the stamp has to say. The place is in it because an editable install points to it, and the interpreter
    because site-packages belongs to its version."""
    with open(os.path.join(ROOT, "pyproject.toml"), "rb") as file:
        digest = hashlib.sha256(file.read()).hexdigest()
    return {"pyproject": digest, "extras": sorted(extras), "root": ROOT, "python": os.path.realpath(PYTHON)}


def stamp() -> Dict[str, object]:
    try:
        with open(STAMP) as file:
            found = json.load(file)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def installed_extras(found: Dict[str, object]) -> List[str]:
    extras = found.get("extras")
    return [str(name) for name in extras] if isinstance(extras, list) else []


def is_ready(extras: Sequence[str]) -> bool:
    found = stamp()
    have = installed_extras(found)
    return os.path.exists(PYTHON) and set(extras) <= set(have) and dict(wanted(have)) == found


def has_everything(extras: Sequence[str]) -> bool:
    """Whether the running Python can import jev_local and has every package pyproject.toml names for `extras`."""
    import importlib.util
    import tomllib
    from importlib import metadata

    if importlib.util.find_spec("jev_local") is None:
        return False
    with open(os.path.join(ROOT, "pyproject.toml"), "rb") as file:
        project = tomllib.load(file)["project"]
    required = list(project["dependencies"])
    for extra in extras:
        required += project["optional-dependencies"][extra]
    try:
        for requirement in required:
            metadata.distribution(re.split(r"[\s\[<>=!~;]", requirement, maxsplit=1)[0])
    except metadata.PackageNotFoundError:
        return False
    return True


def ensure(extras: Sequence[str] = ("local",)) -> str:
    """Path of a Python in .venv that has this project with `extras`. Milliseconds when nothing has to be done."""
    if not is_ready(extras):
        with Lock() as lock:
            if not is_ready(extras):  # the other terminal may have done it
                install(extras, lock)
    return PYTHON


def install(extras: Sequence[str], lock: int) -> None:
    known = stamp()
    extras = sorted(set(extras) | set(installed_extras(known)))
    broken = os.path.exists(UNFINISHED) or not os.path.exists(PYTHON)
    moved = bool(known) and (known.get("root") != ROOT or known.get("python") != os.path.realpath(PYTHON))
    if os.path.exists(STAMP):
        os.unlink(STAMP)
    with open(UNFINISHED, "w") as file:
        file.write("An interrupted set-up leaves this file; the next one starts from a fresh .venv.\n")
    say("Setting up %s (once; a minute or two)" % VENV)
    if broken or moved:
        run("making the environment", [sys.executable, "-m", "venv", "--clear", VENV], lock, explain_venv)
    target = ".[%s]" % ",".join(extras) if extras else "."
    pip = [PYTHON, "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--retries", "2", "-e", target]
    try:
        run("installing", pip, lock, explain_pip)
    except SetupFailed:  # pip undoes what it began, so what was there before is there still
        if known and not (broken or moved):
            finish(known)
        raise
    finish(wanted(extras))


def finish(state: Dict[str, object]) -> None:
    os.unlink(UNFINISHED)
    with open(STAMP + ".new", "w") as file:
        json.dump(state, file)
    os.replace(STAMP + ".new", STAMP)


class Lock:
    """One set-up at a time in this checkout. The kernel lets go of it when its holder dies."""

    def __enter__(self) -> int:
        import fcntl

        os.makedirs(CACHE, mode=0o700, exist_ok=True)
        self._file = open(os.path.join(CACHE, "setup.lock"), "w")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            say("Waiting for another set-up of this checkout to finish ...")
            fcntl.flock(self._file, fcntl.LOCK_EX)
        return self._file.fileno()

    def __exit__(self, *_: object) -> None:
        self._file.close()


def explain_venv(output: str) -> str:
    if "ensurepip" in output or "No module named venv" in output:
        return "This Python cannot make an environment: install its venv module (on Debian and Ubuntu: python3-venv)"
    return "Could not make %s: %s" % (VENV, last_line(output))


def explain_pip(output: str) -> str:
    if "No space left" in output:
        return "The disk is full: free some space and run this again"
    if NO_NETWORK.search(output):
        return (
            "Could not fetch the packages: connect this machine to the network, or point pip to an index it can reach"
            " (PIP_INDEX_URL), and run this again"
        )
    missing = NOT_FOUND.search(output)
    if missing:
        return (
            "pip found no %s for Python %d.%d: connect this machine to the network, try another Python, or point pip to"
            " an index that has it (PIP_INDEX_URL)" % (missing.group(1), sys.version_info[0], sys.version_info[1])
        )
    return "pip could not install this project: %s" % last_line(output)


def last_line(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    return (errors or lines or ["it said nothing"])[-1]


def run(title: str, command: Sequence[str], lock: int, explain: Callable[[str], str]) -> None:
    """Run `command` in the checkout. It inherits the lock: a pip that goes on after kill -9 of this program still
    keeps others out."""
    code, output = watched.run(title, command, cwd=ROOT, inherit=lock)
    if code != 0:
        raise SetupFailed(explain(output) + keep(output))


def keep(output: str) -> str:
    """Write `output` to the log, and say where that is. What matters is said on the terminal, so a disk that is full
    is no reason to say something else."""
    try:
        with open(LOG, "w", encoding="utf-8", errors="replace") as file:
            file.write(output)
    except OSError:
        return ""
    return "; details: %s" % LOG


def say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


@contextlib.contextmanager
def complaints() -> Iterator[None]:
    """What goes wrong in here becomes one line and an exit code, never a traceback."""
    try:
        yield
    except SetupFailed as failure:
        sys.exit("jev-local: %s" % failure)
    except OSError as failure:
        sys.exit("jev-local: set-up failed: %s" % failure)
    except KeyboardInterrupt:
        say("\nInterrupted; the next run starts the set-up afresh")
        sys.exit(130)


def continue_in_venv(*extras: str) -> None:
    """Return if the running Python has everything; else run the same command line again in .venv, made if need be."""
    arguments = original_arguments()
    with complaints():
        require_python(arguments)
        in_venv = os.path.realpath(sys.prefix) == os.path.realpath(VENV)
        set_up = not in_venv or is_ready(extras)
        if set_up and has_everything(extras):
            return
        if set_up and in_venv:  # going on in the same place would go on forever
            raise SetupFailed("packages are missing from %s, which was complete: remove it and run again" % VENV)
        become(ensure(extras or ("local",)), arguments or sys.argv)


def main(arguments: List[str]) -> int:
    """See the head of this file."""
    split = arguments.index("--") if "--" in arguments else len(arguments)
    if split > 1 or any(word.startswith("-") for word in arguments[:split]):
        say(__doc__ or "")
        return 0 if arguments[0] in ("-h", "--help") else 2
    with complaints():
        require_python([os.path.abspath(__file__), *arguments])
        python = ensure(arguments[0].split(",") if split else ["local"])
        if split < len(arguments):
            become(python, arguments[split + 1 :])
    print(python)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
