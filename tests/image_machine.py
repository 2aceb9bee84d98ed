"""A machine for the image cache from set-up to benchmark: a checkout, the hosts that files come from, and an AMD GPU.

The hosts are `standins`, the models the tiny ones, and the GPU is a library that its plugin needs. llama.cpp is
`toy_llama`, which has the places that the patch knows: it is patched, compiled and run for real. What has to be changed
in the checkout for that is its pins: digests, and the address of the release.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from archive_files import pack
from empty_machine import ROOT, command, copy_checkout, environment, required
from image_builds import SERVING
from jev_local.launch.models import VISION
from jev_local.launch.pins import HubSource
from jev_local.launch.runtimes import candidates
from programs import until
from standins import StandIn, hub_path

GITHUB = "https://github.com/ggml-org/llama.cpp"
TOY = {
    path.relative_to(ROOT / "tests" / "toy_llama").as_posix(): path.read_bytes()
    for path in sorted((ROOT / "tests" / "toy_llama").rglob("*"))
    if path.is_file()
}
PATCHED = "tools/mtmd/mtmd.cpp"

TRACED = f"""
from jev_local.backend import child
parameters = child.parameters
def traced(options):
    made = parameters(options)
    made.verbosity = 4
    return made
child.parameters = traced
{SERVING}"""
"""A server whose log tells when it encodes a picture."""

AFTER_THE_PATCH = """
import sys
import patch_vision_cache as patch
text = open(sys.argv[1]).read()
for edit in patch.the_patch().edits:
    text = text.replace(edit.old, edit.new)
print(patch.sha256(text.encode()))
"""


@dataclass(frozen=True, slots=True)
class Machine:
    """`place` is the checkout, `user` a home folder, `scratch` one for temporary files; `rocm` has what the GPU's
    plugin needs. `python` is a folder with a Python that has no packages."""

    place: Path
    user: Path
    scratch: Path
    rocm: Path
    python: Path
    host: StandIn

    @property
    def settings(self) -> dict[str, str]:
        """Of somebody who has set nothing, where the hub is ours."""
        return {
            "HOME": str(self.user),
            "TMPDIR": str(self.scratch),
            "PATH": f"{self.python}{os.pathsep}{os.environ['PATH']}",
            "LD_LIBRARY_PATH": "",
            "HF_ENDPOINT": self.host.address,
        }

    def run(self, line: str, **more: str) -> subprocess.CompletedProcess[str]:
        """A line typed into a shell in the checkout."""
        return command("bash", "-c", line, cwd=self.place, settings=self.settings | more)

    def succeeds(self, line: str, **more: str) -> str:
        """The same, which has to end with exit code 0: what it printed."""
        return required("bash", "-c", line, cwd=self.place, settings=self.settings | more)

    @contextlib.contextmanager
    def terminal(self, log: Path, line: str, **more: str) -> Iterator[subprocess.Popen[bytes]]:
        """A program in a terminal of its own, from when it says that it is ready."""
        with log.open("wb") as output:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {line}"],
                cwd=self.place,
                env=environment(**self.settings, **more),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            until(lambda: "Ready: http" in log.read_text() or process.poll() is not None, "readiness")
            assert process.poll() is None, log.read_text()
            yield process
        finally:
            process.kill()
            process.wait()

    @property
    def fetched(self) -> list[str]:
        """Names of the files that were asked for."""
        return [asked.path.rpartition("/")[2] for asked in self.host.gets]

    def processes(self) -> list[str]:
        """Command lines of everything that runs out of the checkout."""
        lines = []
        for file in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                lines.append(file.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        return [line for line in lines if str(self.place) in line]


def make(folder: Path, host: StandIn, models: tuple[Path, Path]) -> Machine:
    """One in `folder`, where nothing has been set up yet but the packages. `models`: weights and projector."""
    machine = Machine(
        folder / "check out", folder / "user", folder / "scratch", folder / "rocm", folder / "bare/bin", host
    )
    for made in (machine.user, machine.scratch, machine.rocm):
        made.mkdir()
    copy_checkout(machine.place)
    required(sys.executable, "-m", "venv", "--without-pip", machine.python.parent, cwd=folder)
    _set_up_packages(machine.place)
    release = _release(folder / "release", machine)
    sources = _sources(folder / "sources.tar.gz", machine.place)
    _pin_models(machine, models)
    _pin_llama(machine, release=release.read_bytes(), sources=sources.read_bytes())
    return machine


def _set_up_packages(place: Path) -> None:
    """.venv as the first command would make it, in a second and not in a minute: with our own packages."""
    required(sys.executable, "-m", "venv", "--without-pip", place / ".venv", cwd=place)
    (packages,) = place.glob(".venv/lib/python*/site-packages")
    ours = [path for path in sys.path if path.endswith("-packages")]
    (packages / "checkout.pth").write_text("\n".join([str(place / "src"), *ours, ""]))
    told = "import bootstrap, json; print(json.dumps(bootstrap.wanted(['local'])))"
    stamp = required(sys.executable, "-c", told, cwd=place / "scripts")
    (place / ".venv" / "jev-stamp.json").write_text(stamp)


def _release(folder: Path, machine: Machine) -> Path:
    """The archive for ROCm: a llama-server, and the plugin by which it sees the GPU."""
    _write(folder, _toy(machine.place))
    base, hip = folder / "libggml-base.so.0", folder / "libggml-hip.so"
    amd = machine.rocm / "libamdhip64.so.7"
    shared = ("-shared", "-fPIC", "-Wl,--no-as-needed")
    _compile(amd, *shared, f"-Wl,-soname,{amd.name}", folder / "ggml/cpu.cpp")
    _compile(base, *shared, f"-Wl,-soname,{base.name}", folder / "ggml/base.cpp")
    _compile(hip, *shared, folder / "ggml/cpu.cpp", base, amd)
    server = folder / "llama-server"
    words = ('-DBUILD="11042"', f"-I{folder / 'tools/mtmd'}", "-Wl,-rpath,$ORIGIN")
    _compile(server, *words, folder / "tools/server/main.cpp", folder / PATCHED, base, "-ldl")
    return pack(
        folder / "release.tar.gz",
        ("llama-b11042/llama-server", server.read_bytes()),
        ("llama-b11042/libggml-hip.so", hip.read_bytes()),
        ("llama-b11042/libggml-base.so.0.24.0", base.read_bytes()),
        ("llama-b11042/libggml-base.so.0", "libggml-base.so.0.24.0"),
    )


def _compile(target: Path, *words: str | Path) -> None:
    required("g++", "-std=c++17", *words, "-o", target, cwd=target.parent)


def _sources(path: Path, place: Path) -> Path:
    return pack(path, *((f"llama.cpp-b11042/{name}", content) for name, content in _toy(place).items()))


def _toy(place: Path) -> dict[str, bytes]:
    """Its files, for a checkout with whose packages its server serves."""
    python = json.dumps(str(place / ".venv" / "bin" / "python"))
    header = f'static const char PYTHON[] = {python};\nstatic const char SERVER[] = R"py({TRACED})py";\n'
    return TOY | {"tools/server/stand_in.h": header.encode()}


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def _pin_models(machine: Machine, models: tuple[Path, Path]) -> None:
    for pinned, path in zip(VISION.files, models, strict=True):
        (source,) = pinned.sources
        assert isinstance(source, HubSource)
        content = path.read_bytes()
        machine.host.files[hub_path(source.repository, source.revision, source.file)] = content
        _replace(machine.place / "src/jev_local/launch/models.py", pinned.sha256, _sha256(content))


def _pin_llama(machine: Machine, *, release: bytes, sources: bytes) -> None:
    file = machine.place / "native" / "source.json"
    pins = json.loads(file.read_text())
    (rocm,) = candidates("Linux", "x86_64", "rocm")
    (archive,) = rocm.archives
    runtimes = machine.place / "src/jev_local/launch/runtimes.py"
    _replace(runtimes, archive.sha256, _sha256(release))
    _replace(runtimes, GITHUB, machine.host.address)
    for pin, content in (("rocm_runtime", release), ("source", sources)):
        path = pins[pin]["url"].removeprefix(GITHUB)
        machine.host.files[path] = content
        pins[pin] |= {"url": machine.host.url(path), "sha256": _sha256(content)}
    toy = machine.place.parent / "release" / PATCHED
    after = required(sys.executable, "-c", AFTER_THE_PATCH, toy, cwd=machine.place / "scripts").strip()
    pins["patched"] |= {"before": _sha256(TOY[PATCHED]), "after": after}
    pins["relied_on"] = {"tools/mtmd/mtmd-image.h": _sha256(TOY["tools/mtmd/mtmd-image.h"])}
    file.write_text(json.dumps(pins))


def _replace(file: Path, old: str, new: str) -> None:
    text = file.read_text("utf-8")
    assert text.count(old) == 1, f"{old} is not in {file.name} once"
    file.write_text(text.replace(old, new), "utf-8")


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
