"""The package as people install it: what is in it, and that it answers without a checkout."""

import contextlib
import email
import os
import signal
import stat
import subprocess
import tarfile
import zipfile
from collections.abc import Iterator
from configparser import ConfigParser
from contextlib import contextmanager
from email.message import Message
from pathlib import Path

import pytest

from empty_machine import command, copy_checkout, environment, required
from programs import free_port, listens, status, two_free_ports, until, up
from wheels_made import Installed, build_archive, build_wheel, install

STRAYS = (
    "models/weights.gguf",
    ".cache/slots/what-somebody-sent.bin",
    ".venv/bin/python3",
    "results/report.md",
    "sample_pics/holiday.png",
    "src/jev_local/__pycache__/app.cpython-311.pyc",
    "notes.txt",
    "id.pem",
)
"""What lies about in a checkout that is used."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout that somebody has used for a while."""
    place = tmp_path_factory.mktemp("wheel") / "check out"
    copy_checkout(place)
    for name in STRAYS:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(b"nobody else's business")
    return place


@pytest.fixture(scope="module")
def wheel(place: Path) -> Path:
    return build_wheel(place, place.parent / "wheel")


@pytest.fixture(scope="module")
def installed(wheel: Path) -> Installed:
    """With the inference server; at a path with a space, which the commands' first lines have to survive."""
    return install(wheel, "local", wheel.parent.parent / "an environment")


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A folder to work in that has nothing to do with a checkout."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    return folder


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, str]:
    """Somebody whose home folder is empty."""
    (tmp_path / "user").mkdir()
    return {"HOME": str(tmp_path / "user")}


@pytest.fixture
def ports() -> tuple[int, int]:
    """Of the API and of the inference server."""
    return two_free_ports()


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


def packed(place: Path) -> set[str]:
    """The files of the package in the checkout, without what its .gitignore keeps out."""
    root = place / "src"
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() and path.suffix != ".pyc"}


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@contextmanager
def started(log: Path, *words: str | Path, cwd: Path, settings: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A program in a process group of its own, as a terminal starts one."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            words,
            cwd=cwd,
            env=environment(**settings),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_the_wheel_holds_the_package_and_nothing_else(place: Path, wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    about = {name for name in names if ".dist-info/" in name}
    assert names - about == packed(place)
    assert {"jev_local/py.typed", "jev_local/data/systemone.json", "jev_local/__main__.py"} <= names
    assert {name.partition("/")[2] for name in about} == {"METADATA", "RECORD", "WHEEL", "entry_points.txt"}


def test_the_wheel_says_what_it_is_and_needs(place: Path, wheel: Path) -> None:
    about = metadata(wheel)
    assert about["Name"] == "jev-local"
    assert about["Requires-Python"] == ">=3.11"
    assert wheel.name == f"jev_local-{about['Version']}-py3-none-any.whl", "one for every machine"
    assert set(about.get_all("Provides-Extra", ())) == {"local", "test", "bench"}
    needs = about.get_all("Requires-Dist", ())
    assert [need.partition("=")[0] for need in needs if need.endswith("extra == 'local'")] == ["xllamacpp"]
    always = " ".join(need for need in needs if "extra ==" not in need)
    assert "fastapi" in always
    assert "pytest" not in always
    assert "xllamacpp" not in always, "in front of a llama-server elsewhere nobody needs one here"
    assert about["Description-Content-Type"] == "text/markdown"
    readme = about.get_payload(decode=True)
    assert isinstance(readme, bytes)
    assert readme.decode().strip() == (place / "README.md").read_text("utf-8").strip()


def test_the_wheel_brings_the_two_commands(wheel: Path) -> None:
    commands = ConfigParser()
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/entry_points.txt"))
        commands.read_string(archive.read(name).decode())
    assert set(commands["console_scripts"]) == {"jev-local", "systemone"}


def test_the_source_archive_holds_a_clone_and_makes_the_same_wheel(place: Path, wheel: Path) -> None:
    archive = build_archive(place, place.parent / "archive")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
        executable = {member.name.partition("/")[2] for member in opened.getmembers() if member.mode & 0o100}
    assert not names & set(STRAYS)
    clone = {name for name in files(place) if (place / name).is_file()} - set(STRAYS)
    assert clone - names == {".ci/run"}, "what only our own machines need"
    assert names - clone == {"PKG-INFO"}
    assert {"run.sh", "run_server.sh", "run_api_server.sh", "scripts/test"} <= executable
    assert build_wheel(archive, place.parent / "again").read_bytes() == wheel.read_bytes()


def test_the_main_job_runs_from_another_folder(
    installed: Installed, tiny_model: Path, ports: tuple[int, int], elsewhere: Path, settings: dict[str, str]
) -> None:
    where = required(
        installed.python, "-c", "import jev_local; print(jev_local.__file__)", cwd=elsewhere, settings=settings
    )
    assert Path(where.strip()).is_relative_to(installed.folder), "and not from the checkout that runs this test"
    words: tuple[str | Path, ...] = (installed.jev_local, *up(ports, tiny_model, "--once"))
    shown = required(*words, cwd=elsewhere, settings=settings)
    for question in ("refund", "department", "investigation_readiness"):
        assert question in shown, "the table"
    kept = Path(settings["HOME"]) / ".cache" / "jev-local"
    assert str(kept / "cache" / "slots") in shown
    assert mode(kept / "cache") == mode(kept / "cache" / "slots") == 0o700, "states are what callers sent"
    assert (kept / "models").is_dir()
    assert files(elsewhere) == set()
    assert not listens(ports[0])
    assert not listens(ports[1])


def test_two_terminals_answer_a_third_and_stop_at_ctrl_c(
    installed: Installed, tiny_model: Path, ports: tuple[int, int], elsewhere: Path, settings: dict[str, str]
) -> None:
    api, backend = (f"http://127.0.0.1:{port}" for port in ports)
    logs = [elsewhere.parent / name for name in ("backend.log", "api.log")]
    serve: tuple[str | Path, ...] = (installed.jev_local, "serve", "--port", str(ports[0]), "--backend-url", backend)
    run: tuple[str | Path, ...] = (installed.jev_local, "backend", "--port", str(ports[1]), "--model", tiny_model)
    with contextlib.ExitStack() as terminals:
        programs = [
            terminals.enter_context(started(log, *words, cwd=elsewhere, settings=settings))
            for log, words in zip(logs, (run, serve), strict=True)
        ]
        until(lambda: status(f"{api}/ready") == 200, "readiness of the API")
        asked = (installed.systemone, "ask", "--url", api, "--state", "I was charged twice.")
        assert "refund" in required(*asked, cwd=elsewhere, settings=settings)
        doctor = (installed.systemone, "doctor", "--url", api, "--backend-url", backend)
        required(*doctor, cwd=elsewhere, settings=settings)
        for program, log in zip(reversed(programs), reversed(logs), strict=True):
            os.killpg(program.pid, signal.SIGINT)
            assert program.wait(10) == 0, log.read_text()
            assert "Traceback" not in log.read_text()
    assert not listens(ports[0])
    assert not listens(ports[1])
    assert files(elsewhere) == set()


def test_a_dry_set_up_tells_and_writes_nothing(installed: Installed, elsewhere: Path, settings: dict[str, str]) -> None:
    told = required(installed.jev_local, "setup", "--dry-run", cwd=elsewhere, settings=settings)
    assert "LFM2.5-1.2B-Instruct" in told
    assert files(elsewhere) == set()
    assert files(Path(settings["HOME"])) == set()


def test_a_hint_names_a_command_that_is_here(installed: Installed, elsewhere: Path, settings: dict[str, str]) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    done = command(installed.systemone, "ask", "--url", url, cwd=elsewhere, settings=settings)
    assert done.returncode == 3
    assert "Start the server with jev-local up" in done.stderr
