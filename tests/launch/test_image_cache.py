"""The launcher of the experimental image cache: what it refuses, what it becomes, what it counts; and all of it live,
with the wheel's server in the place of the patched one."""

import itertools
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

import tiny_vision
from image_builds import stand_in
from image_files import data_url, image_file
from jev_local.launch import image_build, image_cache, image_lookups
from jev_local.launch.errors import CannotStart
from jev_local.launch.image_lookups import Kept, Lookups
from programs import listens, two_free_ports, until

ROOT = Path(__file__).resolve().parents[2]
REAL = os.environ.get("JEV_IMAGE_CACHE_BUILD")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "vl.gguf"
    path.write_bytes(b"GGUF")
    return path


@pytest.fixture
def variables(tmp_path: Path, model: Path) -> dict[str, str]:
    """Of a machine where everything is there."""
    build = stand_in(tmp_path / "build", backend="rocm")
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path / "user"),
        "JEV_HOME": str(tmp_path / "home"),
        "JEV_IMAGE_CACHE_BUILD": str(build),
        "MODEL": str(model),
        "MMPROJ": str(model),
    }


def plan(variables: dict[str, str], *words: str, for_api: tuple[str, ...] = ()) -> image_cache.Start:
    api, backend = two_free_ports()
    ports = ["--port", str(api), "--backend-port", str(backend)]
    return image_cache.plan(image_cache.parser().parse_args([*ports, *words]), for_api, variables)


def refusal(variables: dict[str, str], *words: str) -> tuple[str, int]:
    with pytest.raises(CannotStart) as caught:
        plan(variables, *words)
    return caught.value.message, caught.value.code


def test_it_becomes_up_with_the_build_and_without_prefix_sharing(variables: dict[str, str], tmp_path: Path) -> None:
    start = plan(variables, for_api=("--image-prefix", "auto"))
    assert start.argv[:6] == (sys.executable, "-P", "-m", "jev_local", "up", "--no-demo")
    assert start.argv[-5:] == ("--", "--image-prefix", "off", "--image-prefix", "auto"), "the last one counts"
    settings = start.environment
    assert settings["LLAMA_SERVER"] == str(tmp_path / "build" / "bin" / "llama-server")
    assert (settings["GPU_DEVICE"], settings["CTX_SIZE"], settings["JEV_IMAGE_CACHE_MIB"]) == ("ROCm0", "32768", "128")
    assert "LD_LIBRARY_PATH" not in settings
    assert not start.log.exists(), "planning writes no log"


@pytest.mark.parametrize(
    ("for_api", "more"),
    [(("--bogus",), {}), (("--workers", "x"), {}), ((), {"CTX_SIZE": "abc"}), ((), {"PARALLEL": "0"})],
)
def test_what_the_servers_would_refuse_is_refused_before_the_last_runs_log_is_touched(
    variables: dict[str, str], for_api: tuple[str, ...], more: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises((SystemExit, CannotStart)) as refused:
        plan(variables | more, for_api=for_api)
    assert getattr(refused.value, "code", None) == 2


def test_variables_and_options_of_the_user_are_kept(variables: dict[str, str], tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(b"GGUF")
    variables |= {"GPU_DEVICE": "ROCm1", "CTX_SIZE": "4096", "JEV_IMAGE_CACHE_MIB": "0", "LLAMA_SERVER": "/elsewhere"}
    start = plan(variables, "--mmproj", str(other))
    assert start.argv[start.argv.index("--mmproj") + 1] == str(other)
    settings = start.environment
    assert (settings["GPU_DEVICE"], settings["CTX_SIZE"], settings["JEV_IMAGE_CACHE_MIB"]) == ("ROCm1", "4096", "0")
    assert settings["LLAMA_SERVER"] != "/elsewhere"
    assert "JEV_IMAGE_CACHE_MIB  0: no cache" in start.told


def test_without_a_gpu(variables: dict[str, str], tmp_path: Path) -> None:
    variables |= {"LD_LIBRARY_PATH": "/before", "ROCM_LIBRARY_DIR": str(tmp_path)}
    stand_in(tmp_path / "build", backend="cpu")
    for start in (plan(variables | {"GPU_DEVICE": "ROCm0"}, "--cpu"), plan(variables | {"GPU_DEVICE": "none"})):
        assert start.environment["GPU_DEVICE"] == "none"
        assert start.environment["LD_LIBRARY_PATH"] == "/before"
    message, code = refusal(variables)
    assert code == 2
    assert "--cpu" in message
    assert "python3 scripts/build_image_cache.py --jobs 8" in message


def test_the_order_of_library_folders(variables: dict[str, str], tmp_path: Path) -> None:
    def path(**more: str) -> str | None:
        return image_build.library_path({**variables, **more})

    assert path() is None
    assert path(LD_LIBRARY_PATH="/a:/b") == "/a:/b"
    vendor = tmp_path / "user/.lmstudio/extensions/backends/vendor/linux-llama-rocm-vendor-v4"
    vendor.mkdir(parents=True)
    assert path() == str(vendor)
    assert path(LD_LIBRARY_PATH="/a:/b") == f"{vendor}:/a:/b"
    assert path(ROCM_LIBRARY_DIR=str(tmp_path)) == str(tmp_path), "the named one instead"
    assert path(ROCM_LIBRARY_DIR=str(tmp_path), LD_LIBRARY_PATH="/a") == f"{tmp_path}:/a"
    assert path(ROCM_LIBRARY_DIR="", LD_LIBRARY_PATH="") == str(vendor), "empty is not set"
    with pytest.raises(CannotStart, match=r"ROCM_LIBRARY_DIR .*/nowhere is not a folder"):
        path(ROCM_LIBRARY_DIR=str(tmp_path / "nowhere"))
    assert plan(variables).environment["LD_LIBRARY_PATH"] == str(vendor)


@pytest.mark.parametrize("bad", ["abc", "-1", "4097", "1.5", "", " 5", "5 ", "99999", "٣", "+1", "0x10", "1\n"])
def test_a_limit_that_cannot_be(variables: dict[str, str], bad: str) -> None:
    message, code = refusal(variables | {"JEV_IMAGE_CACHE_MIB": bad})
    assert code == 2
    assert message == f"JEV_IMAGE_CACHE_MIB has to be a whole number from 0 (no cache) to 4096, got {bad!r}"


def test_limits_that_can_be() -> None:
    assert [image_build.limit({"JEV_IMAGE_CACHE_MIB": text}) for text in ("0", "1", "4096")] == [0, 1, 4096]
    assert image_build.limit({}) == 128


def test_without_a_build_the_command_is_named(variables: dict[str, str], tmp_path: Path) -> None:
    variables["JEV_IMAGE_CACHE_BUILD"] = str(tmp_path / "none")
    gpu, code = refusal(variables)
    assert code == 1
    assert gpu.endswith("make it with python3 scripts/build_image_cache.py --jobs 8")
    assert refusal(variables, "--cpu")[0].endswith("python3 scripts/build_image_cache.py --jobs 8 --backend cpu")


def test_the_build_of_the_checkout_is_the_usual_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Path] = []
    monkeypatch.setattr(image_build, "_recorded", lambda folder, make: asked.append(folder) or stub)
    stub = image_build.ImageBuild(tmp_path, "rocm", {})
    image_build.find_build({"JEV_HOME": str(tmp_path)}, cpu=False, cpu_option="--cpu")
    assert asked == [ROOT / ".cache" / "vision-build-gcc"]


def _alter(build: Path) -> None:
    with (build / "bin" / "llama-server").open("a") as file:
        file.write("#")


def _lose(build: Path) -> None:
    (build / "bin" / "libmtmd.so.0").unlink()


def _garble(build: Path) -> None:
    (build / "jev-build.json").write_text("{")


def _forget(build: Path) -> None:
    (build / "jev-build.json").write_text('{"backend": "rocm", "files": {}}')


@pytest.mark.parametrize("harm", [_alter, _lose, _garble, _forget])
def test_a_build_that_is_not_as_recorded_is_refused(variables: dict[str, str], harm: Any) -> None:
    harm(Path(variables["JEV_IMAGE_CACHE_BUILD"]))
    message, code = refusal(variables)
    assert code == 1
    assert "build again with python3 scripts/build_image_cache.py --jobs 8" in message


@pytest.mark.parametrize(("variable", "option"), [("MODEL", "--model"), ("MMPROJ", "--mmproj")])
def test_seeing_takes_two_files(variables: dict[str, str], variable: str, option: str) -> None:
    value = variables.pop(variable)
    message, code = refusal(variables)
    assert code == 2
    assert f"is missing: set {variable} to its .gguf" in message
    assert plan(variables, option, value)
    assert "is not a GGUF file" in refusal(variables, option, __file__)[0]


@pytest.mark.parametrize("option", ["--port", "--backend-port"])
def test_a_busy_port_is_refused(variables: dict[str, str], option: str) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        busy = other.getsockname()[1]
        message, code = refusal(variables, option, str(busy))
    assert code == 2
    assert message == f"port {busy} on 127.0.0.1 is in use: stop what listens there, or choose another with {option}"


def test_a_gpu_that_the_server_does_not_see(variables: dict[str, str]) -> None:
    message, code = refusal(variables | {"GPU_DEVICE": "ROCm7"})
    assert code == 2
    assert message.startswith("llama-server sees no ROCm7 here, but ROCm0, ROCm1: ")
    assert "ROCM_LIBRARY_DIR" in message
    assert plan(variables | {"GPU_DEVICE": "ROCm0,ROCm1"})


LOG = """\
0.00.1 W JEV_IMAGE_CACHE miss, 1 entries in 900 of 2097152 bytes
JEV_IMAGE_CACHE started 2026-01-02T03:04:05Z, limit 2 MiB
srv  load: a model
0.00.5 W JEV_IMAGE_CACHE miss, 1 entries in 1048576 of 2097152 bytes
0.00.6 W JEV_IMAGE_CACHE hit, 1 entries in 1048576 of 2097152 bytes
x JEV_IMAGE_CACHE hit, 1 entries in 1048576 of 2097152 bytes y JEV_IMAGE_CACHE hit, 1 entries in 1 of 1 bytes
0.00.7 W JEV_IMAGE_CACHE miss (larger than the limit, not kept), 2 entries in 1572864 of 2097152 bytes
JEV_IMAGE_CACHE hitherto JEV_IMAGE_CACHE_MIB
"""


def test_hits_and_misses_since_the_last_start() -> None:
    since, found = image_lookups.since_start(LOG)
    assert since == image_lookups.Since("2026-01-02T03:04:05Z", 2)
    assert (found.misses, found.hits, str(found)) == (2, 3, "2 misses + 3 hits")
    assert found.reasons == {"larger than the limit, not kept": 1}
    assert found.kept == Kept(2, 1572864, 2097152)
    assert image_lookups.count(LOG).misses == 3
    assert image_lookups.since_start("nothing") == (None, Lookups())


def test_status_is_read_from_the_log(
    variables: dict[str, str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    port = str(two_free_ports()[1])
    assert image_cache.main(["--status", "--backend-port", port]) == 1
    assert "start one with ./run_image_cache_gpu.sh" in capsys.readouterr().err
    assert not (tmp_path / "home").exists()
    log = tmp_path / "home" / "cache" / f"llama-server-{port}.log"
    log.parent.mkdir(parents=True)

    def told(text: str) -> str:
        log.write_text(text)
        assert image_cache.main(["--status", "--backend-port", port]) == 0
        return capsys.readouterr().out

    said = told(LOG)
    assert f"on port {port}, which does not run now" in said
    assert "since     2026-01-02T03:04:05Z, with a limit of 2 MiB" in said
    assert re.search(r"misses +2 \(encoded\)\n +hits +3 ", said)
    assert "not kept  1 (larger than the limit, not kept)" in said
    assert "2 pictures or tiles: 1.5 of 2.0 MiB, 0.75 MiB each on average" in said
    assert "its log begins" in told("an ordinary log\n")
    assert "the cache is off" in told("JEV_IMAGE_CACHE started 2026-01-02T03:04:05Z, limit 0 MiB\n")
    assert "the projector is not LFM2's" in told("JEV_IMAGE_CACHE started 2026-01-02T03:04:05Z, limit 9 MiB\n")


def test_refusals_are_one_line(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (variables | {"JEV_IMAGE_CACHE_MIB": "abc"}).items():
        monkeypatch.setenv(name, value)
    assert image_cache.main([]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert re.fullmatch(r"run_image_cache_gpu\.sh: JEV_IMAGE_CACHE_MIB .* got 'abc'\n", said.err)


def test_help_names_what_it_takes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        image_cache.main(["--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    for word in ("MODEL", "MMPROJ", "JEV_IMAGE_CACHE_MIB", "GPU_DEVICE", "ROCM_LIBRARY_DIR", "--status", "--cpu"):
        assert word in said
    assert all(len(line) <= 120 for line in said.splitlines())


def test_the_script_does_what_run_sh_does() -> None:
    """Up to the last words, so that both set up the same environment in the same way."""
    ordinary, special = ((ROOT / name).read_text() for name in ("run.sh", "run_image_cache_gpu.sh"))
    assert special.splitlines()[2:4] == ordinary.splitlines()[2:4]
    *before, module, _ = shlex.split(special.splitlines()[4])
    assert module == "jev_local.launch.image_cache"
    assert [*before, "jev_local", "up", "$@"] == shlex.split(ordinary.splitlines()[4])
    assert os.access(ROOT / "run_image_cache_gpu.sh", os.X_OK)


class Launched:
    """The launcher as a process of its own, on two free ports."""

    def __init__(self, folder: Path, build: Path, *words: str, **more: str) -> None:
        self.folder = folder
        self.ports = two_free_ports()
        model, projector = tiny_vision.write(folder / "models")
        usual = {name: value for name, value in os.environ.items() if name not in ("LLAMA_SERVER", "LD_LIBRARY_PATH")}
        self.environment = {
            **usual,
            "JEV_IMAGE_CACHE_BUILD": str(build),
            "JEV_HOME": str(folder / "home"),
            "JEV_API_KEY": "",
            "MODEL": str(model),
            "MMPROJ": str(projector),
            **more,
        }
        self.output = folder / "output.txt"
        with self.output.open("wb") as file:
            self.process = subprocess.Popen(
                self._command(*words),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=self.environment,
                start_new_session=True,
            )

    def _command(self, *words: str) -> list[str]:
        ports = ["--port", str(self.ports[0]), "--backend-port", str(self.ports[1])]
        return [sys.executable, "-P", "-m", "jev_local.launch.image_cache", *ports, *words]

    def await_ready(self) -> None:
        until(lambda: "Ready: http" in self.output.read_text() or self.process.poll() is not None, "readiness")
        assert self.process.poll() is None, self.output.read_text()

    def ask(self, state: str = "A picture.") -> httpx.Response:
        choice = {"type": "choice", "criteria": {"a": None, "b": None}}
        body = {"state": state, "questions": dict.fromkeys("pqrs", choice), "images": [data_url(image_file())]}
        return httpx.post(f"http://127.0.0.1:{self.ports[0]}/v1/systemone", json=body, timeout=60, trust_env=False)

    def status(self) -> str:
        return subprocess.run(
            self._command("--status"), env=self.environment, capture_output=True, text=True, check=True, timeout=30
        ).stdout

    def lookups(self) -> tuple[int, int]:
        """Misses and hits so far."""
        found = re.search(r"misses +(\d+) .*\n +hits +(\d+) ", self.status())
        return (int(found[1]), int(found[2])) if found else (0, 0)

    def end(self) -> int:
        """Ctrl-C: the terminal sends it to the whole group."""
        os.killpg(self.process.pid, signal.SIGINT)
        return self.process.wait(10)


@contextmanager
def launched(folder: Path, build: Path, *words: str, **more: str) -> Iterator[Launched]:
    program = Launched(folder, build, *words, **more)
    try:
        program.await_ready()
        yield program
    finally:
        program.process.kill()
        program.process.wait()


def test_the_whole_way_with_a_stand_in(tmp_path: Path) -> None:
    build = stand_in(tmp_path / "build", backend="rocm", says="W JEV_IMAGE_CACHE miss, 1 entries in 5 of 9 bytes")
    with launched(tmp_path, build, ROCM_LIBRARY_DIR=str(tmp_path), LD_LIBRARY_PATH="/before", THREADS="1") as program:
        reply = program.ask()
        assert reply.status_code == 200, reply.text
        assert reply.headers["X-Jev-Local-State-Cache"] == "off-images"
        log = (tmp_path / "home" / "cache" / f"llama-server-{program.ports[1]}.log").read_text()
        assert f"LD_LIBRARY_PATH={tmp_path}:/before JEV_IMAGE_CACHE_MIB=128" in log
        assert re.search(r"native server .*--ctx-size 32768 --parallel 4 .*--device ROCm0", log)
        said = program.status()
        assert "which is running" in said
        assert re.search(r"with a limit of 128 MiB\n +misses +1 ", said)
        assert program.end() == 0
        assert not any(listens(port) for port in program.ports)
    assert "does not run now" in program.status()


@pytest.mark.skipif(REAL is None, reason="JEV_IMAGE_CACHE_BUILD names no patched build")
def test_one_miss_and_three_hits_with_the_real_build(tmp_path: Path) -> None:
    assert REAL is not None
    with launched(tmp_path, Path(REAL), "--cpu") as program:
        assert "No lookups" in program.status()
        for misses, hits in ((1, 3), (1, 7)):
            assert program.ask().status_code == 200
            assert re.search(rf"misses +{misses} .*\n +hits +{hits} ", program.status())
        assert program.end() == 0
        assert not any(listens(port) for port in program.ports)


@pytest.mark.skipif(REAL is None, reason="JEV_IMAGE_CACHE_BUILD names no patched build")
def test_a_picture_about_which_something_else_is_known_is_not_encoded_again(tmp_path: Path) -> None:
    """With prefixes shared, a request looks each picture up once. The trials at start have pictures of their own."""
    assert REAL is not None
    with launched(tmp_path, Path(REAL), "--cpu", "--", "--image-prefix", "auto") as program:
        counts = [program.lookups()]
        for state in ("A picture.", "A picture.", "Another state.", "A third."):
            reply = program.ask(state)
            assert reply.headers["X-Jev-Local-State-Cache"] == "shared", reply.text
            counts.append(program.lookups())
        gained = [(after[0] - before[0], after[1] - before[1]) for before, after in itertools.pairwise(counts)]
        assert gained == [(1, 0), (0, 0), (0, 1), (0, 1)]
