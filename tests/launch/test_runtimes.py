"""Which official builds there are for which machine."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from jev_local.launch import drivers
from jev_local.launch.models import CATALOGUE
from jev_local.launch.pins import HubSource, UrlSource
from jev_local.launch.runtimes import BUILD, RUNTIMES, candidates

SOURCES = json.loads(Path(__file__).parents[2].joinpath("native/source.json").read_text("utf-8"))


@pytest.mark.parametrize(
    ("system", "machine", "backend", "expected"),
    [
        ("Linux", "x86_64", "auto", ["cuda", "rocm", "cpu"]),
        ("Linux", "AMD64", "auto", ["cuda", "rocm", "cpu"]),
        ("Linux", "aarch64", "auto", ["cpu"]),
        ("Linux", "arm64", "auto", ["cpu"]),
        ("Darwin", "arm64", "auto", ["metal", "cpu"]),
        ("Darwin", "x86_64", "auto", ["cpu"]),
        ("Linux", "x86_64", "rocm", ["rocm"]),
        ("Linux", "x86_64", "metal", []),
        ("Linux", "aarch64", "cuda", []),
        ("Windows", "AMD64", "auto", []),
        ("Linux", "riscv64", "auto", []),
    ],
)
def test_what_may_be_tried(system: str, machine: str, backend: str, expected: list[str]) -> None:
    assert [one.backend for one in candidates(system, machine, backend)] == expected


def test_every_pin_is_whole_and_of_one_build() -> None:
    archives = {archive.file: archive for each in RUNTIMES.values() for one in each for archive in one.archives}
    assert len(archives) == 7
    assert len({archive.sha256 for archive in archives.values()}) == 7
    for archive in archives.values():
        assert re.fullmatch("[0-9a-f]{64}", archive.sha256)
        (source,) = archive.sources
        assert source == UrlSource(f"https://github.com/ggml-org/llama.cpp/releases/download/{BUILD}/{archive.file}")
    cuda = candidates("Linux", "x86_64", "cuda")[0]
    assert [archive.file.partition("-")[0] for archive in cuda.archives] == ["llama", "cudart"], "the program first"


def test_the_image_cache_is_built_from_the_same_release() -> None:
    assert f"b{SOURCES['source']['build']}" == BUILD
    (rocm,) = candidates("Linux", "x86_64", "rocm")[0].archives
    assert {"url": rocm.sources[0].url, "sha256": rocm.sha256}.items() <= SOURCES["rocm_runtime"].items()


def test_hub_files_are_pinned_by_revision() -> None:
    for model in CATALOGUE.values():
        for pinned in model.files:
            assert re.fullmatch("[0-9a-f]{64}", pinned.sha256)
            for source in pinned.sources:
                if isinstance(source, HubSource):
                    assert re.fullmatch("[0-9a-f]{40}", source.revision)
                    assert source.file == pinned.file


def test_a_driver_is_looked_for_before_a_download(monkeypatch: pytest.MonkeyPatch) -> None:
    assert drivers.missing("cpu") is None
    assert drivers.missing("metal") is None
    for backend, sign in (("cuda", "NVIDIA driver"), ("rocm", "/dev/kfd")):
        monkeypatch.setattr(drivers, "SIGNS", {backend: (lambda: False, drivers.SIGNS[backend][1])})
        assert sign in str(drivers.missing(backend))
        monkeypatch.setattr(drivers, "SIGNS", {backend: (lambda: True, "")})
        assert drivers.missing(backend) is None
        monkeypatch.undo()
