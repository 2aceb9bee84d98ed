"""The build of llama-server with the image cache: the tools it asks for, and the whole of it on a toy llama.cpp."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from image_cache import building, plugins, products, sources, toolchain
from image_cache.compiling import latest_step
from jev_local.launch import choice, runtimes
from jev_local.launch.choice import Chosen
from jev_local.launch.errors import CannotStart
from jev_local.launch.home import home
from jev_local.launch.pins import Pinned
from jev_local.launch.runtimes import Runtime
from jev_local.launch.unpacked import RECORD, unpack
from patch_vision_cache import Edit, Patch, sha256
from patch_vision_cache import pins as real_pins
from programs import until

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "scripts"
TOOLS = {"CC": "gcc", "CXX": "g++", "CMAKE": "cmake", "NINJA": "ninja", "READELF": "readelf"}

can_build = pytest.mark.skipif(
    any(shutil.which(program) is None for program in TOOLS.values()),
    reason="g++, CMake, Ninja or readelf is missing here",
)
with_gcc = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++ here to ask")


def program(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def complaints(environment: dict[str, str]) -> list[str]:
    with pytest.raises(CannotStart) as failure:
        toolchain.find(environment)
    return failure.value.message.splitlines()[1:]


def test_everything_that_is_missing_is_named_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = complaints({"CC": "/no/such/gcc"})
    assert found[0] == "  - CC=/no/such/gcc is not a program that can be run: correct it, or unset CC"
    for name, package in (("g++", "g++"), ("cmake", "cmake"), ("ninja", "ninja-build"), ("readelf", "binutils")):
        assert any(line.startswith(f"  - {name} is missing") and f"apt install {package})" in line for line in found)


@can_build
def test_the_usual_tools_will_do() -> None:
    tools = toolchain.find({})
    assert Path(tools.cxx).is_absolute()
    assert set(tools.versions) == {"cc", "cxx", "cmake", "ninja"}


@with_gcc
@pytest.mark.parametrize(
    ("macros", "says"),
    [
        ("-D__clang__=1", "is clang, whose C++ does not fit"),
        ("-D__INTEL_COMPILER=2021", "is the Intel compiler"),
        ("-D_GLIBCXX_USE_CXX11_ABI=0", "is not GCC with libstdc++ for Linux on x86_64 (_GLIBCXX_USE_CXX11_ABI)"),
        ("-nostdinc++", "lacks its headers"),
        ("-std=c++18", "does not take -std=c++17"),
    ],
)
def test_another_compiler_is_refused(tmp_path: Path, macros: str, says: str) -> None:
    """Stood in for by GCC with other predefined macros, which is all that is asked for."""
    wrapper = program(tmp_path / "c++", f'exec g++ {macros} "$@"')
    (line,) = [line for line in complaints({"CXX": wrapper}) if "CXX" in line]
    assert says in line


@with_gcc
def test_a_foreign_c_compiler_is_refused(tmp_path: Path) -> None:
    wrapper = program(tmp_path / "cc", 'exec gcc -D__clang__=1 "$@"')
    assert any(line.startswith(f"  - CC {wrapper} is clang") for line in complaints({"CC": wrapper}))


@pytest.mark.parametrize(
    ("said", "good"),
    [("cmake version 3.16.8", False), ("cmake version 3.18.0", True), ("cmake version 4.1.2", True), ("what?", False)],
)
def test_the_version_of_cmake(tmp_path: Path, said: str, good: bool) -> None:
    old = program(tmp_path / "cmake", f"echo '{said}'")
    try:
        toolchain.find({"CMAKE": old})
        complaint = ""
    except CannotStart as failure:
        complaint = failure.message
    assert (f"CMake 3.18 or newer is needed, and this is '{said}'" in complaint) is not good


def test_another_platform_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    with pytest.raises(CannotStart, match=r"for Linux on x86_64, and this is .* on aarch64"):
        toolchain.find({})


def test_ninja_is_condensed_to_a_few_words() -> None:
    output = "[1/9] Building C object a/b.c.o\nwarning: x\n[2/9] Building CXX object tools/x.dir/mtmd.cpp.o\nnote"
    assert latest_step(output) == ": 2 of 9, mtmd.cpp"
    assert latest_step("[9/9] Linking CXX executable bin/llama-server") == ": 9 of 9, llama-server"
    assert latest_step("-- Configuring done") == ""


MAIN = "#include <cstdio>\nconst char * kind();\nint main() { std::puts(kind()); }\n"
KIND = 'int base();\nconst char * kind() { return base() ? "version: stock" : ""; }\n'
PATCHED = '#include "cache.h"\nint base();\nconst char * kind() { return base() ? "version: " CACHE : ""; }\n'
CMAKELISTS = """\
cmake_minimum_required(VERSION 3.14)
project(toy C CXX)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
add_library(ggml-base SHARED ggml/base.cpp)
set_target_properties(ggml-base PROPERTIES VERSION 0.24.0 SOVERSION 0)
add_library(mtmd SHARED tools/kind.cpp)
target_link_libraries(mtmd PRIVATE ggml-base)
add_library(ggml-cpu MODULE ggml/cpu.cpp)
add_executable(llama-server tools/main.cpp)
target_link_libraries(llama-server PRIVATE mtmd)
"""
TREE = {f"{name}/file": "x\n" for name in sources.NEEDED if name not in ("CMakeLists.txt", "LICENSE")} | {
    "CMakeLists.txt": CMAKELISTS,
    "LICENSE": "x\n",
    "ggml/base.cpp": "int base() { return 1; }\n",
    "ggml/cpu.cpp": "int cpu() { return 1; }\n",
    "tools/kind.cpp": KIND,
    "tools/main.cpp": MAIN,
}
PATCH = Patch(
    file="tools/kind.cpp",
    before=sha256(KIND.encode()),
    after=sha256(PATCHED.encode()),
    edits=(Edit(KIND, PATCHED),),
    header="tools/cache.h",
    header_bytes=b'#define CACHE "with cache"\n',
    relied_on={"tools/main.cpp": sha256(MAIN.encode())},
)


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A llama.cpp in ten lines, with a patch of its own. The folder to build in is beside it."""
    tree = tmp_path / "toy"
    for name, content in TREE.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(content)
    pins = {"source": {"build": 1, "sha256": "", "url": ""}, "ggml_trees": {}, "rocm_runtime": {}}
    monkeypatch.setattr(building, "pins", lambda: pins)
    monkeypatch.setattr(building, "the_patch", lambda: PATCH)
    for name in ("CC", "CXX", "CMAKE", "NINJA", "READELF"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("JEV_HOME", str(tmp_path / "home"))
    return tree


def build(toy: Path, backend: str = "cpu") -> Path:
    building.build(toy.parent / "build", jobs=2, backend=backend, source=toy)
    return toy.parent / "build"


def record(folder: Path) -> Any:
    return json.loads((folder / "jev-build.json").read_text())


@can_build
def test_a_whole_build(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXXFLAGS", "-DNOT_INHERITED -Wno-such-thing-%")
    before = {path: path.stat().st_mtime_ns for path in toy.rglob("*")}
    folder = build(toy)
    assert {path: path.stat().st_mtime_ns for path in toy.rglob("*")} == before
    known = record(folder)
    assert known["backend"] == "cpu"
    assert known["source"]["patched"] == {"tools/kind.cpp": PATCH.after, "tools/cache.h": PATCH.header_digest}
    assert known["build"]["version"] == "version: with cache"
    assert known["build"]["options"]["GGML_NATIVE"] == "ON"
    assert set(known["files"]) == {"bin/libggml-base.so.0", "bin/libmtmd.so", "bin/llama-server"}
    for name, digest in known["files"].items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest
    assert {path.name for path in (folder / "bin").iterdir()} == {name[4:] for name in known["files"]}


@can_build
def test_the_program_finds_its_own_libraries_before_those_of_the_environment(toy: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(build(toy) / "bin", tmp_path / "moved")
    shutil.rmtree(tmp_path / "build")
    other = tmp_path / "other"
    other.mkdir()
    source = "int kind_() { return 0; }"
    subprocess.run(
        ["g++", "-shared", "-x", "c++", "-", "-o", str(other / "libmtmd.so")], input=source, text=True, check=True
    )
    environment = {**os.environ, "LD_LIBRARY_PATH": str(other)}
    asked = subprocess.run([moved / "llama-server"], env=environment, capture_output=True, check=True)
    assert asked.stdout == b"version: with cache\n"


@can_build
def test_again_it_is_the_same_and_a_change_shows(toy: Path) -> None:
    first = record(build(toy))
    assert record(build(toy))["files"] == first["files"]
    (toy / "ggml" / "base.cpp").write_text("int base() { return 2; }\n")
    second = record(build(toy))
    assert second["files"]["bin/libggml-base.so.0"] != first["files"]["bin/libggml-base.so.0"]
    assert second["source"]["sha256"] != first["source"]["sha256"]


@can_build
def test_a_failure_shows_its_end_and_leaves_the_former_build(toy: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = build(toy)
    before = record(folder)
    (toy / "ggml" / "base.cpp").write_text("no C++\n")
    assert building.told("build_image_cache", lambda: len(str(build(toy)))) == 1
    said = capfd.readouterr().err
    assert "Ninja ended with exit code 1" in said
    assert "ninja.log" in said
    assert "does not name a type" in said
    assert record(folder) == before


@can_build
def test_a_program_that_does_not_run_is_not_published(toy: Path) -> None:
    folder = build(toy)
    before = record(folder)
    files = {products.SERVER: Path(program(folder / "broken", "exit 3"))}
    with pytest.raises(CannotStart, match=r"does not run \(exit code 3\)"):
        products.publish(files, folder, record={"build": {}})
    assert record(folder) == before
    assert (folder / "bin" / "llama-server").stat().st_size > 1000


@can_build
def test_two_at_once_are_refused(toy: Path) -> None:
    folder = toy.parent / "build"
    folder.mkdir()
    with FileLock(folder / "build.lock"), pytest.raises(CannotStart, match="another build is at work"):
        build(toy)


def runtime(toy: Path, *, needs: str = "libggml-base.so.0", version: str = "0.24.0") -> dict[str, str]:
    """An official ROCm archive, put into the downloads, with a plugin that needs that ggml. Its pins."""
    work = toy.parent / "plugin"
    work.mkdir()
    for name, arguments in (("base.so", [f"-Wl,-soname,{needs}"]), ("libggml-hip.so", [str(work / "base.so")])):
        command = ["g++", "-shared", "-Wl,--no-as-needed", "-x", "c++", "-", "-x", "none", *arguments]
        subprocess.run([*command, "-o", str(work / name)], input="int x;", text=True, check=True)
    folder = toy.parent / "build" / "downloads"
    folder.mkdir(parents=True)
    with tarfile.open(folder / "rocm.tar.gz", "w:gz") as tar:
        tar.add(work / "libggml-hip.so", "llama-b1/libggml-hip.so")
        tar.add(work / "base.so", f"llama-b1/libggml-base.so.{version}")
        tar.add(work / "base.so", "llama-b1/llama-server")
    digest = hashlib.sha256((folder / "rocm.tar.gz").read_bytes()).hexdigest()
    return {"url": "http://127.0.0.1:1/rocm.tar.gz", "sha256": digest, "library": "libggml-hip.so"}


@can_build
def test_for_rocm_the_official_plugin_goes_beside_the_program(
    toy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pins = {**building.pins(), "rocm_runtime": runtime(toy)}
    monkeypatch.setattr(building, "pins", lambda: pins)
    known = record(build(toy, "rocm"))
    assert {"bin/libggml-hip.so", "bin/libggml-cpu.so", "bin/libggml-base.so.0"} < set(known["files"])
    assert known["source"]["rocm_runtime"] == pins["rocm_runtime"]["sha256"]
    assert known["build"]["options"]["GGML_BACKEND_DL"] == "ON"
    assert known["build"]["options"]["GGML_NATIVE"] == "OFF"
    assert "It sees no GPU here" in capsys.readouterr().out
    (toy.parent / "build" / "downloads" / "rocm.tar.gz").unlink()
    build(toy, "rocm")  # it was taken out already


@can_build
@pytest.mark.parametrize(
    ("needs", "version", "says"),
    [
        ("libggml-base.so.1", "1.0.0", "libggml-hip.so needs libggml-base.so.1, which this source does not build"),
        ("libggml-base.so.0", "0.25.0", "goes with libggml-base.so.0.25.0, and this source builds .*so.0.24.0"),
    ],
)
def test_a_plugin_of_another_ggml_is_refused(
    toy: Path, monkeypatch: pytest.MonkeyPatch, needs: str, version: str, says: str
) -> None:
    pins = {**building.pins(), "rocm_runtime": runtime(toy, needs=needs, version=version)}
    monkeypatch.setattr(building, "pins", lambda: pins)
    with pytest.raises(CannotStart, match=says):
        build(toy, "rocm")
    assert not (toy.parent / "build" / "jev-build.json").exists()


def set_up(toy: Path, pins: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Path:
    """That archive as set-up leaves it: unpacked into the folder that is returned, and nowhere else any more."""
    archive = toy.parent / "build" / "downloads" / "rocm.tar.gz"
    pinned = Pinned(what="", file=archive.name, sha256=pins["sha256"], sources=())
    monkeypatch.setattr(runtimes, "RUNTIMES", {("Linux", "x86_64"): (Runtime("b1-rocm", "rocm", (pinned,)),)})
    folder = home().runtimes / "b1-rocm"
    unpack([archive], [pinned], folder)
    archive.unlink()
    return folder


@can_build
def test_what_set_up_has_unpacked_is_not_fetched_again(
    toy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pins = runtime(toy)
    folder = set_up(toy, pins, monkeypatch)
    everything = {**building.pins(), "rocm_runtime": pins}
    monkeypatch.setattr(building, "pins", lambda: everything)
    known = record(build(toy, "rocm"))
    plugin = folder / "libggml-hip.so"
    assert f"Using libggml-hip.so of {folder}" in capsys.readouterr().out
    assert known["source"]["rocm_runtime"] == pins["sha256"]
    assert known["files"]["bin/libggml-hip.so"] == sha256(plugin.read_bytes())
    assert not list((toy.parent / "build").glob("rocm-*")), "it is not kept twice"
    found = plugins.official(pins, toy.parent / "build")
    assert found.neighbours == ("libggml-base.so.0.24.0", "libggml-hip.so", "llama-server")

    monkeypatch.setattr("jev_local.launch.transfer.PAUSE", 0.01)
    for other in ('{"archives": ["another"]}', "{"):
        (folder / RECORD).write_text(other)
        with pytest.raises(CannotStart, match=r"could not fetch the ROCm plugin of llama\.cpp"):
            build(toy, "rocm")


@can_build
def test_a_plugin_of_another_ggml_is_refused_from_there_too(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pins = runtime(toy, version="0.25.0")
    set_up(toy, pins, monkeypatch)
    everything = {**building.pins(), "rocm_runtime": pins}
    monkeypatch.setattr(building, "pins", lambda: everything)
    with pytest.raises(CannotStart, match=r"goes with libggml-base\.so\.0\.25\.0"):
        build(toy, "rocm")


def test_set_up_and_the_build_pin_the_same_archive() -> None:
    (rocm,) = runtimes.candidates("Linux", "x86_64", "rocm")
    (archive,) = rocm.archives
    (source,) = archive.sources
    pinned = real_pins()["rocm_runtime"]
    assert (archive.sha256, getattr(source, "url", "")) == (pinned["sha256"], pinned["url"])


def test_the_gpu_is_looked_for_with_the_libraries_that_set_up_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lists = "echo 'Available devices:'; [ \"$LD_LIBRARY_PATH\" != /opt/rocm ] || echo '  ROCm0: A GPU'"
    server = Path(program(tmp_path / "llama-server", lists))
    monkeypatch.setenv("JEV_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("LD_LIBRARY_PATH", "ROCM_LIBRARY_DIR"):
        monkeypatch.delenv(name, raising=False)
    plugins.say_whether_seen(server)
    assert "It sees no GPU here" in capsys.readouterr().out
    choice.change(home(), lambda _: Chosen(backend="rocm", library_path="/opt/rocm"))
    plugins.say_whether_seen(server)
    assert capsys.readouterr().out == ""


INTERRUPTED = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from image_cache.building import told
from image_cache.compiling import Build
from image_cache.toolchain import Toolchain
work = Path(sys.argv[2])
tools = Toolchain(cc="", cxx="", cmake="", ninja=str(work / "ninja"), versions={})
sys.exit(told("build", lambda: Build(work, work, "cpu", tools, None).compile(1) or 0))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_ends_the_compilers(tmp_path: Path, number: signal.Signals) -> None:
    program(tmp_path / "ninja", f"echo $$ > {tmp_path}/pid.new; mv {tmp_path}/pid.new {tmp_path}/pid; exec sleep 600")
    driver = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, str(SCRIPTS), str(tmp_path)], stderr=subprocess.PIPE, text=True
    )
    until((tmp_path / "pid").exists, "the stand-in for ninja starting")
    driver.send_signal(number)
    _, said = driver.communicate(timeout=30)
    assert driver.returncode == 130
    assert "Interrupted; the next run goes on from here" in said
    assert not Path("/proc", (tmp_path / "pid").read_text().strip()).exists()


@pytest.mark.parametrize("script", ["build_image_cache.py", "prove_image_cache.py"])
def test_the_programs_tell_what_they_want(script: str) -> None:
    """Without any package, and so without setting up an environment."""
    asked = subprocess.run(
        [sys.executable, "-S", str(SCRIPTS / script), "--help"], capture_output=True, text=True, check=True
    )
    assert "--jobs N" in asked.stdout
    assert "--source PATH" in asked.stdout
    wrong = subprocess.run(
        [sys.executable, "-S", str(SCRIPTS / script), "--jobs", "0"], capture_output=True, text=True, check=False
    )
    assert wrong.returncode == 2
    assert "0 is not a number of jobs" in wrong.stderr
