"""Set-up of models and builds, against local stand-ins for the release host and the hub."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from archive_files import pack
from jev_local.launch import choice, drivers, runtimes, setup
from jev_local.launch.choice import Chosen
from jev_local.launch.errors import CannotStart
from jev_local.launch.home import Home, home
from jev_local.launch.models import CATALOGUE, Model
from jev_local.launch.pins import HubSource, Pinned, UrlSource
from jev_local.launch.progress import bytes_in
from jev_local.launch.runtimes import Runtime
from jev_local.launch.setup import Wishes
from standins import StandIn, hub_path, stand_in

HERE = ("Linux", "x86_64")
LISTS = {"cuda": "  CUDA0: A GPU (1 MiB, 1 MiB free)", "rocm": "  ROCm0: Another (2 MiB, 1 MiB free)", "cpu": ""}
WEIGHTS = b"GGUF" + os.urandom(300_000)


def program(lists: str) -> bytes:
    """A llama-server that tells what it sees, and writes down LD_LIBRARY_PATH as it was asked with."""
    return (
        '#!/bin/sh\necho "$LD_LIBRARY_PATH" > "$(dirname "$0")/asked-with"\n'
        f"echo 'Available devices:'\n{f'echo {lists!r}' if lists else ''}\nexit 0\n"
    ).encode()


class Machine:
    """A machine with a Linux, some drivers, and stand-ins for all the network it reaches."""

    def __init__(self, folder: Path, host: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.host, self._monkeypatch = folder, host, monkeypatch
        self.home: Home = home({"JEV_HOME": str(folder / "home")})
        self.environment: dict[str, str] = {"PATH": os.environ["PATH"], "HOME": str(folder)}
        self.drivers("cuda", "rocm")
        for backend, lists in LISTS.items():
            self.release(backend, program(lists))
        self.models()
        monkeypatch.setattr("platform.system", lambda: HERE[0])
        monkeypatch.setattr("platform.machine", lambda: HERE[1])
        template = host.url("/{repo_id}/resolve/{revision}/{filename}")
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr("jev_local.launch.transfer.PAUSE", 0.01)

    def drivers(self, *there: str) -> None:
        signs = {name: (lambda name=name: name in there, f"no {name} here") for name in ("cuda", "rocm")}
        self._monkeypatch.setattr(drivers, "SIGNS", signs)

    def release(self, backend: str, content: bytes, *, sha256: str | None = None) -> None:
        """Its archive is what the release host has from now on, and `sha256` (its own) what is pinned."""
        files = [self._archive(f"llama-{backend}.tar.gz", {"llama-b1/llama-server": content}, sha256)]
        if backend == "cuda":
            files.append(self._archive("cudart.tar.gz", {"libcudart.so.12": b"cuda"}, None))
        runtime = Runtime(f"b1-{backend}", backend, tuple(files))
        kept = [one for one in runtimes.RUNTIMES.get(HERE, ()) if one.backend != backend and one.name.startswith("b1-")]
        order = sorted([*kept, runtime], key=lambda one: list(LISTS).index(one.backend))
        self._use_runtimes({HERE: tuple(order)})

    def _use_runtimes(self, those: Mapping[tuple[str, str], tuple[Runtime, ...]]) -> None:
        self._monkeypatch.setattr(runtimes, "RUNTIMES", those)

    def _archive(self, name: str, files: dict[str, bytes], sha256: str | None) -> Pinned:
        content = pack(self.folder / name, *files.items()).read_bytes()
        self.host.files[f"/b1/{name}"] = content
        digest = sha256 or hashlib.sha256(content).hexdigest()
        source = UrlSource(self.host.url(f"/b1/{name}"))
        return Pinned(what=f"the archive {name}", file=name, sha256=digest, sources=(source,))

    def models(self, *, sha256: str | None = None) -> None:
        """`text`, and `vision` with its projector, out of the stand-in for the hub."""

        def file(name: str, content: bytes) -> Pinned:
            self.host.files[hub_path("o/r", "r" * 40, name)] = content
            digest = sha256 or hashlib.sha256(content).hexdigest()
            source = HubSource("o/r", "r" * 40, name)
            return Pinned(what=f"the file {name}", file=name, sha256=digest, sources=(source,))

        text = Model("text", file("text.gguf", WEIGHTS))
        vision = Model("vision", file("vision.gguf", WEIGHTS[::-1]), file("mmproj.gguf", b"GGUFp" * 1000))
        known = {**CATALOGUE, "text": text, "vision": vision}
        self._monkeypatch.setattr(
            "jev_local.launch.setup.choose", lambda wish: known[wish] if "/" not in wish else Path(wish)
        )

    def set_up(self, **wishes: object) -> int:
        return setup.run(Wishes(**wishes), self.environment, self.home)  # type: ignore[arg-type]

    def fails(self, **wishes: object) -> str:
        with pytest.raises(CannotStart) as caught:
            self.set_up(**wishes)
        assert choice.read(self.home) == Chosen(), "nothing is kept of it"
        return caught.value.message

    @property
    def asked(self) -> list[str]:
        """Names of the files that were fetched."""
        return [asked.path.rpartition("/")[2] for asked in self.host.gets]

    def server(self, backend: str) -> Path:
        return self.home.runtimes / f"b1-{backend}" / "llama-server"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    with stand_in() as host:
        yield Machine(tmp_path, host, monkeypatch)


def test_the_best_that_works_is_fetched_checked_and_kept(machine: Machine) -> None:
    assert machine.set_up() == 0
    assert machine.asked == ["llama-cuda.tar.gz", "cudart.tar.gz", "text.gguf"]
    server = machine.server("cuda")
    assert choice.read(machine.home) == Chosen("text", "cuda", server, str(server.parent))
    assert (server.parent / "libcudart.so.12").read_bytes() == b"cuda"
    assert (machine.home.models / "text.gguf").read_bytes() == WEIGHTS
    assert not list(machine.home.runtimes.rglob("*.tar.gz")), "unpacked archives are not kept"

    before = len(machine.host.asked)
    assert machine.set_up(model="vision") == 0
    assert machine.asked[3:] == ["vision.gguf", "mmproj.gguf"], "what is there is not fetched again"
    assert choice.read(machine.home).model == "vision"
    assert machine.set_up() == 0
    assert choice.read(machine.home).model == "vision", "what was chosen before is the default"
    assert len([asked for asked in machine.host.asked[before:] if asked.method == "GET"]) == 2


def test_without_a_driver_nothing_is_downloaded_for_it(machine: Machine, capfd: pytest.CaptureFixture[str]) -> None:
    machine.drivers("rocm")
    assert machine.set_up() == 0
    assert machine.asked == ["llama-rocm.tar.gz", "text.gguf"]
    assert "llama-server for cuda: passed over, no cuda here" in capfd.readouterr().out
    machine.drivers()
    assert machine.set_up() == 0
    assert choice.read(machine.home) == Chosen("text", "cpu", machine.server("cpu"), None)


def test_a_build_that_lists_no_device_is_passed_over(machine: Machine, capfd: pytest.CaptureFixture[str]) -> None:
    machine.release("cuda", program(""))
    machine.release("rocm", b"#!/bin/sh\necho libamdhip64.so.7: cannot open shared object file >&2\nexit 127\n")
    assert machine.set_up() == 0
    said = capfd.readouterr().out
    assert "llama-server for cuda: passed over, it lists no device and no CUDA" in said
    assert "llama-server for rocm: passed over, it does not run here: libamdhip64.so.7: cannot open" in said
    assert choice.read(machine.home).backend == "cpu"


def test_a_backend_by_name_works_or_fails(machine: Machine) -> None:
    machine.drivers()
    assert "there is no official llama.cpp build with metal" in machine.fails(backend="metal")
    machine.release("rocm", program(LISTS["cuda"]))
    message = machine.fails(backend="rocm")
    assert "llama-server for rocm cannot be used: it lists CUDA0 and no ROCm" in message
    assert "(LD_LIBRARY_PATH was not set): name the folder of the ROCm libraries with LD_LIBRARY_PATH" in message
    assert machine.asked == ["llama-rocm.tar.gz"], "nothing else is tried, and no gigabyte fetched"
    machine.environment["LD_LIBRARY_PATH"] = "/opt/rocm/lib"
    assert "(LD_LIBRARY_PATH was /opt/rocm/lib)" in machine.fails(backend="rocm")


def test_rocm_is_asked_and_kept_with_its_libraries(machine: Machine) -> None:
    """The note's own command: `./setup.sh --model vision --backend rocm` with LD_LIBRARY_PATH set."""
    machine.environment["LD_LIBRARY_PATH"] = "/opt/rocm/lib"
    assert machine.set_up(model="vision", backend="rocm") == 0
    server = machine.server("rocm")
    assert (server.parent / "asked-with").read_text().strip() == "/opt/rocm/lib"
    assert choice.read(machine.home) == Chosen("vision", "rocm", server, "/opt/rocm/lib")
    studio = machine.folder / ".lmstudio/extensions/backends/vendor/linux-llama-rocm-vendor-v4"
    studio.mkdir(parents=True)
    assert machine.set_up(backend="rocm") == 0
    assert choice.read(machine.home).library_path == f"{studio}:/opt/rocm/lib"
    machine.environment["ROCM_LIBRARY_DIR"] = str(machine.folder / "absent")
    with pytest.raises(CannotStart, match=r"ROCM_LIBRARY_DIR .* is not a folder"):
        machine.set_up(backend="rocm")


def test_model_only_leaves_the_server(machine: Machine) -> None:
    assert machine.set_up(backend="cpu") == 0
    before = choice.read(machine.home)
    assert machine.set_up(model="vision", model_only=True) == 0
    assert choice.read(machine.home) == replace(before, model="vision")
    assert "llama-cuda.tar.gz" not in machine.asked
    with pytest.raises(CannotStart, match="--model-only leaves the llama-server as it is: leave --backend cuda out"):
        machine.set_up(model="vision", model_only=True, backend="cuda")


def test_a_server_that_was_chosen_meanwhile_is_kept(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two at once: the model alone, and in the middle of its download everything."""

    def fetch(*_: object, **__: object) -> None:
        monkeypatch.undo()
        choice.change(machine.home, lambda _: Chosen("vision", "cpu", Path("/a/llama-server")))

    monkeypatch.setattr(setup, "fetch", fetch)
    setup.run(Wishes(model="smollm2", model_only=True), machine.environment, machine.home)
    assert choice.read(machine.home) == Chosen("smollm2", "cpu", Path("/a/llama-server"))


def test_a_build_that_was_damaged_since_is_fetched_again(machine: Machine) -> None:
    machine.drivers()
    assert machine.set_up() == 0
    machine.server("cpu").write_bytes(b"")
    assert machine.set_up() == 0
    assert machine.asked.count("llama-cpu.tar.gz") == 2
    assert machine.server("cpu").read_bytes() == program("")


def test_archives_that_were_put_there_by_hand_stay_until_they_are_unpacked(machine: Machine) -> None:
    """The way without a network: CUDA's does not run here, and the processor's is still there then."""
    machine.drivers("cuda")
    machine.release("cuda", program(""))
    archives = machine.home.runtimes / "archives"
    archives.mkdir(parents=True)
    for name in ("llama-cuda.tar.gz", "cudart.tar.gz", "llama-cpu.tar.gz"):
        (archives / name).write_bytes(machine.host.files.pop(f"/b1/{name}"))
    assert machine.set_up() == 0
    assert choice.read(machine.home).backend == "cpu"


def test_without_a_network_the_model_alone_says_why(machine: Machine) -> None:
    machine.host.files.clear()
    assert "could not fetch the file text.gguf (Hugging Face answers 404)" in machine.fails(model_only=True)


def test_relative_folders_of_libraries_are_kept_from_the_root(machine: Machine) -> None:
    """An empty element would be the folder that a later start happens to be in."""
    machine.environment["LD_LIBRARY_PATH"] = ":/opt/rocm/lib:here:"
    assert machine.set_up(backend="rocm") == 0
    assert choice.read(machine.home).library_path == f"/opt/rocm/lib:{Path.cwd() / 'here'}"


def test_what_wins_over_the_choice_is_told(machine: Machine, capfd: pytest.CaptureFixture[str]) -> None:
    machine.environment |= {"LLAMA_SERVER": "mine", "MODEL": "", "MMPROJ": "mine.gguf"}
    assert machine.set_up(backend="cpu") == 0
    said = capfd.readouterr().out
    assert re.findall(r"^(\w+) is set, and wins over that", said, re.MULTILINE) == ["LLAMA_SERVER", "MMPROJ"]


def test_a_file_of_ones_own_becomes_the_choice(machine: Machine, tmp_path: Path) -> None:
    mine = tmp_path / "mine.gguf"
    mine.write_bytes(b"GGUF")
    assert machine.set_up(model=str(mine), model_only=True) == 0
    assert choice.read(machine.home) == Chosen(str(mine))
    assert machine.asked == []
    mine.write_bytes(b"none")
    with pytest.raises(CannotStart, match="is not a GGUF file"):
        machine.set_up()


def test_a_dry_run_tells_and_leaves_no_trace(machine: Machine, capfd: pytest.CaptureFixture[str]) -> None:
    machine.drivers("cuda")
    assert machine.set_up(model="vision", dry_run=True) == 0
    said = capfd.readouterr().out
    assert machine.host.asked == []
    assert not machine.home.cache.exists()
    assert not machine.home.models.exists()
    for told in (
        "Model vision",
        f"{machine.home.models / 'mmproj.gguf'}\n    from Hugging Face o/r@{'r' * 40}\n    SHA-256 ",
        f"{machine.home.runtimes / 'archives' / 'cudart.tar.gz'}\n      from {machine.host.address}/b1/cudart.tar.gz\n",
        "rocm: passed over, no rocm here",
        str(machine.home.choice),
    ):
        assert told in said
    assert machine.set_up(model="vision") == 0
    capfd.readouterr()
    assert machine.set_up(dry_run=True) == 0
    said = capfd.readouterr().out
    assert f"cuda: is there, {machine.home.runtimes / 'b1-cuda'}" in said
    assert f"{machine.home.models / 'vision.gguf'}: is there" in said


def test_without_the_release_host_the_wheels_server_is_said_to_be_the_one(
    machine: Machine, capfd: pytest.CaptureFixture[str]
) -> None:
    machine.drivers()
    del machine.host.files["/b1/llama-cpu.tar.gz"]
    assert "could not fetch the archive llama-cpu.tar.gz" in machine.fails(backend="cpu")
    assert machine.set_up() == 0
    said = capfd.readouterr().out
    assert "llama-server for cpu: passed over, could not fetch the archive llama-cpu.tar.gz" in said
    assert "No official build could be taken" in said
    assert choice.read(machine.home) == Chosen("text")


@pytest.mark.parametrize("what", ["archive", "model"])
def test_a_wrong_hash_stops_it_all_and_the_file_is_kept_aside(machine: Machine, what: str) -> None:
    machine.drivers("cuda")
    if what == "archive":
        machine.release("cuda", program(LISTS["cuda"]), sha256="0" * 64)
        place, name = machine.home.runtimes / "archives", "llama-cuda.tar.gz"
    else:
        machine.models(sha256="0" * 64)
        place, name = machine.home.models, "text.gguf"
    message = machine.fails()
    assert f"{name} is not the file it should be: its SHA-256 is " in message
    assert f"It was set aside as {place / name}.wrong" in message
    assert (place / f"{name}.wrong").stat().st_size > 0
    assert not (place / name).exists()
    assert machine.asked[-1] == name, "nothing else is tried after it"
    assert "llama-cpu.tar.gz" not in machine.asked
    machine.release("cuda", program(LISTS["cuda"]))
    machine.models()
    assert machine.set_up() == 0, "the next run fetches a fresh one"
    assert (place / f"{name}.wrong").stat().st_size > 0


def test_a_cut_connection_is_resumed(machine: Machine) -> None:
    machine.drivers()
    machine.host.cuts = [100, len(WEIGHTS), 5_000]
    assert machine.set_up() == 0
    archive, again, *_ = machine.host.ranges
    assert (archive, again) == ("", "bytes=100-")
    assert machine.host.ranges.count("bytes=5000-") == 1
    assert (machine.home.models / "text.gguf").read_bytes() == WEIGHTS


def test_an_archive_that_is_damaged_inside(machine: Machine) -> None:
    """Its digest is the pinned one, so the pin is of a broken file: told, and nothing half unpacked is left."""
    machine.drivers()
    archive = machine._archive("llama-cpu.tar.gz", {"readme": b"no program"}, None)
    machine._use_runtimes({HERE: (Runtime("b1-cpu", "cpu", (archive,)),)})
    assert "holds 0 programs called llama-server" in machine.fails()
    assert not list(machine.home.runtimes.glob("b1-*"))


CHILD = """
import sys, platform
from jev_local.launch import setup, drivers, runtimes
from jev_local.launch.home import home
from jev_local.launch.models import Model
from jev_local.launch.pins import *
from jev_local.launch.runtimes import Runtime
from jev_local import __main__ as program
runtimes.RUNTIMES = {{(platform.system(), platform.machine()): ({runtime!r},)}}
setup.choose = lambda wish: {model!r}
sys.exit(program.main(["setup", "--backend", "cpu"]))
"""


def start(machine: Machine, *, limit_kib: int | None = None) -> subprocess.Popen[str]:
    """The real program in a process of its own; `limit_kib`: files cannot grow beyond, as on a disk that is full."""
    (runtime,) = runtimes.candidates(*HERE, "cpu")
    code = CHILD.format(runtime=runtime, model=setup.choose("text"))
    words = [sys.executable, "-c", code]
    if limit_kib is not None:
        words = ["bash", "-c", f"trap '' XFSZ; ulimit -f {limit_kib}; exec \"$@\"", "-", *words]
    environment = os.environ | {"JEV_HOME": str(machine.folder / "home"), "HF_ENDPOINT": machine.host.address}
    return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_interrupted_anywhere_the_next_run_resumes(machine: Machine, number: signal.Signals) -> None:
    machine.host.pause_after = 150_000
    archive = machine.host.files["/b1/llama-cpu.tar.gz"]
    machine.release("cpu", program("") + os.urandom(200_000))
    assert machine.host.files["/b1/llama-cpu.tar.gz"] != archive
    child = start(machine)
    assert machine.host.paused.wait(60)
    while bytes_in(machine.home.runtimes) < 100_000:
        assert child.poll() is None
        time.sleep(0.01)
    child.send_signal(number)
    out, err = child.communicate(timeout=20)
    if number is signal.SIGKILL:
        assert child.returncode == -number
    else:
        assert child.returncode == 130, err
        assert "Interrupted; run it again to go on" in out
    assert choice.read(machine.home) == Chosen()
    machine.host.go_on.set()
    out, err = (again := start(machine)).communicate(timeout=60)
    assert again.returncode == 0, err
    resumed = [asked for asked in machine.host.gets if asked.path.endswith("cpu.tar.gz")][1].range
    assert int(resumed.removeprefix("bytes=").removesuffix("-")) > 50_000
    assert choice.read(machine.home) == Chosen("text", "cpu", machine.server("cpu"), None)


def test_a_full_disk_is_one_line(machine: Machine) -> None:
    child = start(machine, limit_kib=200)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 1
    assert "Traceback" not in err
    assert "the disk of " in err
    assert " is full" in err
    assert choice.read(machine.home) == Chosen()
