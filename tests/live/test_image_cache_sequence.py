"""Set-up, build, launch and benchmark of the image cache, one after the other, as the documents write them."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import image_machine
from image_files import image_file
from image_machine import Machine
from programs import listens, two_free_ports
from standins import stand_in

STUDIO = ".lmstudio/extensions/backends/vendor/linux-llama-rocm-vendor-v4"
TOOLS = ("gcc", "g++", "cmake", "ninja", "readelf")
QUESTIONS = ("purpose", "layout", "graphic", "language")
ARCHIVE = "llama-b11042-bin-ubuntu-rocm-10.0-x64.tar.gz"

pytestmark = [
    pytest.mark.skipif(
        (sys.platform, platform.machine()) != ("linux", "x86_64"), reason="the build is for Linux on x86_64"
    ),
    pytest.mark.skipif(not all(map(shutil.which, TOOLS)), reason="g++, CMake, Ninja or readelf is missing here"),
]


@pytest.fixture
def machine(tmp_path: Path, vision_model: tuple[Path, Path]) -> Iterator[Machine]:
    with stand_in() as host:
        yield image_machine.make(tmp_path, host, vision_model)


def test_the_sequence_runs_as_it_is_written(machine: Machine) -> None:
    place, logs = machine.place, machine.place.parent
    set_up = "./setup.sh --model vision --backend rocm"

    refused = machine.run(set_up)
    assert refused.returncode == 1
    assert "it lists no device and no ROCm (LD_LIBRARY_PATH was not set): name the folder" in refused.stderr
    assert machine.fetched == [ARCHIVE], "no model is fetched for a GPU that is not there"
    told = machine.succeeds(set_up, LD_LIBRARY_PATH=str(machine.rocm))
    assert "llama-server for rocm: it runs, and lists ROCm0, A stand-in" in told

    told = machine.succeeds("python3 scripts/build_image_cache.py --jobs 8")
    assert "Using libggml-hip.so of " in told
    assert "It sees no GPU here" not in told, "the folder that set-up was given is known"
    assert machine.fetched == [
        ARCHIVE,
        "LFM2.5-VL-1.6B-Q8_0.gguf",
        "mmproj-LFM2.5-VL-1.6b-F16.gguf",
        "b11042.tar.gz",
    ]
    build = json.loads((place / ".cache/vision-build-gcc/jev-build.json").read_text())
    assert {"bin/llama-server", "bin/libmtmd.so", "bin/libggml-hip.so", "bin/libggml-cpu.so"} < set(build["files"])

    (place / "sample_pics" / "slide.png").write_bytes(image_file(size=(512, 286)))
    api, backend = two_free_ports()
    ports = f"--port {api} --backend-port {backend}"
    launch = f"./run_image_cache_gpu.sh {ports}"
    ask = (
        f"python3 systemone_client.py --url http://127.0.0.1:{api} --input examples/vision_gss_4.json "
        "--image sample_pics/slide.png"
    )
    status = f"./run_image_cache_gpu.sh --status --backend-port {backend}"

    with machine.terminal(logs / "first.log", launch) as program:
        for misses, hits in ((1, 3), (1, 7)):
            answered = machine.succeeds(ask)
            assert all(question in answered for question in QUESTIONS), "the table"
            assert re.search(
                rf"which is running\n.*128 MiB\n +misses +{misses} .*\n +hits +{hits} ", machine.succeeds(status)
            )
        assert machine.processes()
        os.killpg(program.pid, signal.SIGINT)
        assert program.wait(10) == 0, (logs / "first.log").read_text()
    said = (logs / "first.log").read_text()
    assert "build                rocm, version: 11042 (jev-image-cache)" in said
    assert f"LD_LIBRARY_PATH      {machine.rocm}\n" in said, "what set-up was given is kept"
    assert not listens(api)
    assert not listens(backend)

    with machine.terminal(logs / "second.log", launch, JEV_IMAGE_CACHE_MIB="0") as program:
        assert all(question in machine.succeeds(ask) for question in QUESTIONS)
        assert "The limit is 0: the cache is off" in machine.succeeds(status)
        os.killpg(program.pid, signal.SIGINT)
        assert program.wait(10) == 0, (logs / "second.log").read_text()

    studio = machine.user / STUDIO
    studio.parent.mkdir(parents=True)
    machine.rocm.rename(studio)
    told = machine.succeeds(
        f'LD_LIBRARY_PATH="$HOME/{STUDIO}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}" '
        f"python3 -m tools.benchmark_image_cache --image sample_pics/slide.png {ports}"
    )
    assert "1 miss + 3 hits" in told
    measured = json.loads((place / "results" / "image_cache_benchmark.json").read_text())
    assert [len(block["requests"]) for block in measured["blocks"]] == [6] * 6
    off, on, prefix, both = measured["summary"]["conditions"]
    assert on["first_lookups"] == [{"misses": 1, "hits": 3}] * 2
    assert on["further_lookups"] == {"misses": 0, "hits": 40}
    assert off["further_lookups"] == prefix["further_lookups"] == {"misses": 0, "hits": 0}
    assert prefix["state_cache"] == both["state_cache"] == ["shared"]

    assert not listens(api)
    assert not listens(backend)
    assert machine.processes() == []
    assert machine.fetched.count(ARCHIVE) == 1
    assert list(machine.scratch.iterdir()) == []
    written = {path.relative_to(machine.user) for path in machine.user.rglob("*") if path.is_file()}
    assert {path.parts[:3] for path in written} <= {(".cache", "jev-local", "locks"), Path(STUDIO).parts[:3]}
