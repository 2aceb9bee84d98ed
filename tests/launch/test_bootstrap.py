"""The set-up of a checkout, with the two slow commands replaced by a recording. The real thing is in tests/live."""

import ast
import fcntl
import importlib.util
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "bootstrap.py"


class Commands:
    """Stands where `run` stands: makes the interpreter the first command would make, and remembers both."""

    def __init__(self, bootstrap: ModuleType) -> None:
        self.bootstrap = bootstrap
        self.titles: list[str] = []
        self.fail_with: BaseException | None = None
        self.last: Sequence[str] = ()

    def __call__(self, title: str, command: Sequence[str], lock: int, explain: object) -> None:
        self.titles.append(title)
        self.last = command
        if title == "installing" and self.fail_with is not None:
            raise self.fail_with
        if title == "making the environment":
            shutil.rmtree(self.bootstrap.VENV, ignore_errors=True)
            os.makedirs(os.path.dirname(self.bootstrap.PYTHON))
            os.symlink(sys.executable, self.bootstrap.PYTHON)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "a check out [x]"
    (folder / "scripts").mkdir(parents=True)
    for script in (SCRIPT, SCRIPT.with_name("watched.py")):
        shutil.copy(script, folder / "scripts")
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


@pytest.fixture
def bootstrap(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(checkout / "scripts")
    monkeypatch.delitem(sys.modules, "watched", raising=False)
    spec = importlib.util.spec_from_file_location("bootstrap_under_test", checkout / "scripts" / "bootstrap.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def commands(bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Commands:
    recording = Commands(bootstrap)
    monkeypatch.setattr(bootstrap, "run", recording)
    return recording


BOTH = ["making the environment", "installing"]


@pytest.mark.parametrize(
    "file", ["scripts/bootstrap.py", "scripts/watched.py", "systemone_client.py", "tools/__init__.py"]
)
def test_an_old_python_can_read_what_tells_it_that_it_is_old(file: str) -> None:
    ast.parse((ROOT / file).read_text(), feature_version=(3, 5))


def test_an_old_python_is_told_plainly(bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "MINIMUM", (99, 0))
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(
        bootstrap.SetupFailed, match=r"This is Python 3\.\d+, and Python 99\.0 or newer is needed: inst"
    ):
        bootstrap.require_python([])
    assert "start this with /usr/bin/python3.12" in bootstrap.too_old((3, 8), "/usr/bin/python3.12")


def test_an_old_python_goes_on_with_a_newer_one_and_shims_without_one_are_passed_over(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, code in (("python3.13", 127), ("python3.12", 1), ("python3.11", 0)):
        (tmp_path / name).write_text(f"#!/bin/sh\nexit {code}\n")
        (tmp_path / name).chmod(0o755)
    became: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(bootstrap, "become", lambda python, arguments: became.append((python, arguments)))
    monkeypatch.setattr(bootstrap.sys, "version_info", (3, 8, 2, "final", 0))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(bootstrap.SetupFailed):
        bootstrap.require_python(["-m", "tools.x", "--y"])  # only because `become` came back
    assert became == [(str(tmp_path / "python3.11"), ["-m", "tools.x", "--y"])]


def test_a_second_set_up_does_nothing(bootstrap: ModuleType, commands: Commands) -> None:
    assert bootstrap.ensure() == bootstrap.PYTHON
    assert commands.titles == BOTH
    assert commands.last[-2:] == ["-e", ".[local]"]
    assert bootstrap.ensure() == bootstrap.PYTHON
    assert bootstrap.ensure([]) == bootstrap.PYTHON
    assert commands.titles == BOTH


def test_more_extras_are_added_and_never_lost(bootstrap: ModuleType, commands: Commands) -> None:
    bootstrap.ensure(["local"])
    bootstrap.ensure(["test"])
    assert commands.titles == [*BOTH, "installing"]
    assert commands.last[-1] == ".[local,test]"
    bootstrap.ensure(["local"])
    bootstrap.ensure(["local", "test"])
    assert commands.titles == [*BOTH, "installing"]


def test_another_pyproject_installs_again_into_the_same_environment(
    bootstrap: ModuleType, commands: Commands, checkout: Path
) -> None:
    bootstrap.ensure()
    with (checkout / "pyproject.toml").open("a") as file:
        file.write("\n# changed\n")
    bootstrap.ensure()
    assert commands.titles == [*BOTH, "installing"]


@pytest.mark.parametrize("interruption", [KeyboardInterrupt(), SystemExit(), MemoryError()])
def test_an_interrupted_install_is_repaired_from_scratch(
    bootstrap: ModuleType, commands: Commands, interruption: BaseException
) -> None:
    commands.fail_with = interruption
    with pytest.raises(type(interruption)):
        bootstrap.ensure()
    commands.fail_with = None
    bootstrap.ensure()
    assert commands.titles == BOTH + BOTH
    bootstrap.ensure()
    assert commands.titles == BOTH + BOTH


def test_an_install_that_pip_refused_leaves_what_worked_before(bootstrap: ModuleType, commands: Commands) -> None:
    bootstrap.ensure(["local"])
    commands.fail_with = bootstrap.SetupFailed("no network")
    with pytest.raises(bootstrap.SetupFailed):
        bootstrap.ensure(["local", "test"])
    assert bootstrap.ensure(["local"]) == bootstrap.PYTHON
    assert commands.titles == [*BOTH, "installing"]


def test_a_moved_checkout_and_another_interpreter_start_afresh(
    bootstrap: ModuleType, commands: Commands, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bootstrap.ensure()
    os.unlink(bootstrap.PYTHON)
    shutil.copy("/bin/sh", bootstrap.PYTHON)
    bootstrap.ensure()
    assert commands.titles == BOTH + BOTH
    monkeypatch.setattr(bootstrap, "ROOT", str(shutil.copytree(bootstrap.ROOT, tmp_path / "moved")))
    bootstrap.ensure()
    assert commands.titles == BOTH + BOTH + BOTH


def test_an_environment_somebody_made_by_hand_is_kept(bootstrap: ModuleType, commands: Commands) -> None:
    os.makedirs(os.path.dirname(bootstrap.PYTHON))
    os.symlink(sys.executable, bootstrap.PYTHON)
    bootstrap.ensure()
    assert commands.titles == ["installing"]


def test_two_terminals_do_not_collide(
    bootstrap: ModuleType, commands: Commands, capsys: pytest.CaptureFixture[str]
) -> None:
    os.makedirs(bootstrap.CACHE)
    with open(os.path.join(bootstrap.CACHE, "setup.lock"), "w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        timer = threading.Timer(0.3, lambda: fcntl.flock(other, fcntl.LOCK_UN))
        timer.start()
        bootstrap.ensure()
        timer.join()
    assert "Waiting for another set-up" in capsys.readouterr().err
    assert commands.titles == BOTH


@pytest.mark.parametrize(
    ("output", "remedy"),
    [
        ("WARNING: Retrying ... NewConnectionError(... Temporary failure in name resolution)", "connect this machine"),
        (
            "WARNING: Retrying ... ConnectTimeoutError\nERROR: Could not find a version that satisfies the requirement "
            "hatchling>=1.25\nERROR: No matching distribution found for hatchling>=1.25",
            "Could not fetch the packages: connect this machine",
        ),
        (
            "ERROR: Could not find a version that satisfies the requirement xllamacpp==1.0; extra == 'local'\n"
            "ERROR: No matching distribution found for xllamacpp==1.0; extra == 'local'",
            "pip found no xllamacpp==1.0 for Python 3.",
        ),
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", "disk is full"),
        ("Building\nERROR: Package 'jev-local' requires a different Python\nnotice", "requires a different Python"),
        ("", "it said nothing"),
    ],
)
def test_pips_complaints_become_one_line_with_a_remedy(bootstrap: ModuleType, output: str, remedy: str) -> None:
    line = bootstrap.explain_pip(output)
    assert remedy in line
    assert "\n" not in line


def test_a_python_without_venv_names_the_package(bootstrap: ModuleType) -> None:
    assert "python3-venv" in bootstrap.explain_venv("The virtual environment was not created because ensurepip is not")


def test_no_network_is_one_line_and_no_traceback(checkout: Path) -> None:
    """The real pip, with an index that refuses connections."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PIP_")},
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
        "PIP_RETRIES": "1",
    }
    done = subprocess.run(
        [sys.executable, str(checkout / "scripts" / "bootstrap.py")],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    *progress, line = done.stderr.splitlines()
    log = checkout / ".cache" / "setup.log"
    assert line.startswith("jev-local: Could not fetch the packages: connect this machine")
    assert line.endswith(f"details: {log}")
    assert "Connection refused" in log.read_text()
    assert all(step.startswith(("Setting up ", "  making the environment", "  installing")) for step in progress)


def test_progress_in_a_pipe_is_plain_lines(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bootstrap.watched, "IN_PIPE", 0.0)
    script = "echo first; echo WARNING: noise; echo Collecting httpx; sleep 0.3; echo last; exit 3"
    code, output = bootstrap.watched.run("installing", ["sh", "-c", script], cwd=bootstrap.ROOT, inherit=2)
    assert code == 3
    assert output == "first\nWARNING: noise\nCollecting httpx\nlast\n"
    assert "installing, 0 s: Collecting httpx\n" in capsys.readouterr().err


def test_what_is_running_is_enough_when_it_has_everything(
    bootstrap: ModuleType, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    became: list[object] = []
    monkeypatch.setattr(bootstrap, "become", lambda *what: became.append(what))
    bootstrap.continue_in_venv()
    assert not commands.titles
    assert not became
    monkeypatch.setattr(bootstrap, "has_everything", lambda _: False)
    bootstrap.continue_in_venv()
    assert commands.titles == BOTH
    assert became == [(bootstrap.PYTHON, sys.orig_argv[1:])]


def test_an_environment_that_lost_a_package_does_not_go_round_in_circles(
    bootstrap: ModuleType, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    bootstrap.ensure()
    monkeypatch.setattr(bootstrap, "has_everything", lambda _: False)
    monkeypatch.setattr(bootstrap.sys, "prefix", bootstrap.VENV)
    with pytest.raises(SystemExit, match="packages are missing"):
        bootstrap.continue_in_venv()
