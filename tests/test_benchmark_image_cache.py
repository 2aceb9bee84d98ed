"""The benchmark of the image cache: sums with known numbers, what it refuses, and that it leaves nothing behind."""

import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import tiny_vision
from image_builds import stand_in
from image_files import image_file
from jev_local.inputs import InputError
from jev_local.launch.errors import CannotStart
from jev_local.launch.image_lookups import Lookups
from programs import listens, two_free_ports, until
from tools import benchmark_image_cache as benchmark
from tools import image_cache_question
from tools.image_cache_blocks import (
    BOTH,
    FURTHER,
    OFF,
    ON,
    ORDER,
    PREFIX,
    Answer,
    Asked,
    Block,
    CannotMeasure,
    Condition,
    lookups_between,
    require_lookups,
    settled_size,
    to_json,
)
from tools.image_cache_progress import Steps
from tools.image_cache_report import Results, show, written
from tools.image_cache_summary import Summary, apart, choices_agree, summary

ROOT = Path(__file__).resolve().parent.parent
REAL = os.environ.get("JEV_IMAGE_CACHE_BUILD")


def reply(ms: float, yes: float = 0.75, *, lookups: Lookups | None = None, state_cache: str = "off-images") -> Asked:
    answer = Answer("yes" if yes >= 0.5 else "no", {"yes": yes, "no": 1 - yes})
    return Asked(ms, lookups or Lookups(), state_cache, {"q": answer})


def block(condition: Condition, *ms: float, yes: float = 0.75, first: Lookups | None = None) -> Block:
    further = Lookups(hits=4) if condition is ON else None
    asked = [reply(ms[0], yes, lookups=first), *(reply(one, yes, lookups=further) for one in ms[1:])]
    return Block(condition, 0.5, asked)


ONE_MISS = Lookups(misses=1, hits=3)


def measured() -> list[Block]:
    return [
        block(OFF, 380, 350, 351, 358, 360, 361),
        block(ON, 192, 97, 98, 99, 100, 101, first=ONE_MISS),
        block(ON, 212, 95, 96, 97, 98, 99, first=ONE_MISS),
        block(OFF, 383, 352, 353, 358, 362, 363),
        block(PREFIX, 150, 38, 39, 40, 41, 42),
        block(BOTH, 150, 19, 20, 20, 21, 22, first=Lookups(misses=1)),
    ]


def test_the_order_is_off_on_on_off_and_then_sharing() -> None:
    assert ORDER == (OFF, ON, ON, OFF, PREFIX, BOTH)
    assert [kind.limit for kind in ORDER] == [0, 128, 128, 0, 0, 128]
    assert [kind.prefix for kind in ORDER] == ["off"] * 4 + ["auto"] * 2
    assert FURTHER == 5


def test_medians_and_ratios_to_everything_off() -> None:
    off, on, prefix, both = summary(measured(), workers=4).rows
    assert (off.first, off.again, off.further) == ((380, 383), 358, 10)
    assert (off.first_speedup, off.again_speedup) == (1, 1)
    assert (on.first, on.again, on.least, on.most) == ((192, 212), 98, 95, 101)
    assert on.first_speedup == pytest.approx(381.5 / 202)
    assert on.again_speedup == pytest.approx(358 / 98)
    assert on.first_lookups == (ONE_MISS, ONE_MISS)
    assert on.further_lookups == Lookups(hits=40)
    assert (prefix.again_speedup, prefix.further) == (pytest.approx(358 / 40), 5)
    assert both.again_speedup == pytest.approx(358 / 20)


def test_how_far_answers_lie_apart() -> None:
    assert apart([reply(1, 0.5), reply(1, 0.6)], [reply(1, 0.55)]) == pytest.approx(0.05)
    assert apart([reply(1, 0.5), reply(1, 0.6)], [reply(1, 0.9)]) == pytest.approx(0.4)
    assert apart([reply(1, 0.5)], [reply(1, 0.5)]) == 0
    assert apart([], [reply(1)]) is None
    assert apart([reply(1)], [Asked(1, Lookups(), "", {})]) == 1, "an answer that only one has"
    assert choices_agree([reply(1, 0.5), reply(1, 0.6)])
    assert not choices_agree([reply(1, 0.5), reply(1, 0.4)])


def values(found: Summary) -> Mapping[str, float | None]:
    return {one.between: one.value for one in found.differences}


def test_one_worker_has_to_answer_the_same_at_the_same_turn() -> None:
    blocks = measured()
    for one in blocks[:4]:  # what moves with the turn, in all blocks alike, is nobody's fault
        one.asked[2] = reply(100, 0.7, lookups=one.asked[2].lookups)
    found = summary(blocks, workers=1)
    assert values(found)["off, encoder cache"] == pytest.approx(0.05)
    assert values(found)["off, encoder cache, turn by turn"] == 0
    assert found.faults == ()
    blocks[1].asked[0] = reply(100, 0.75 + 2**-20, lookups=ONE_MISS)
    assert len(summary(blocks, workers=1).faults) == 2, "to those without, and to the other block with the cache"
    assert summary(blocks, workers=4).faults == ()
    assert summary(blocks, workers=4).choices_agree


def test_a_run_that_ended_early_is_summed_up_as_far_as_it_went() -> None:
    blocks = measured()[:3]
    blocks[2].asked.pop()
    off, on = summary(blocks, workers=1).rows
    assert (on.first, on.again, off.further) == ((192,), 99, 5)
    (alone,) = summary(measured()[1:2], workers=4).rows
    assert alone.first_speedup is None
    assert values(summary(measured()[:2], workers=1))["off among themselves, turn by turn"] is None
    assert summary([], workers=4).rows == ()


def test_no_line_in_the_log_is_said_loudly() -> None:
    with pytest.raises(CannotMeasure, match="NEVER ASKED"):
        require_lookups(Block(ON, 0, [reply(1)]))
    with pytest.raises(CannotMeasure, match="although its limit was 0: 1 miss"):
        require_lookups(Block(OFF, 0, [reply(1, lookups=ONE_MISS)]))
    require_lookups(Block(BOTH, 0, [reply(1, lookups=ONE_MISS), reply(1)]))


def test_lookups_of_a_request_are_those_between_two_looks(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("JEV_IMAGE_CACHE miss, x\n")
    begins = settled_size(log, 0.02)
    with log.open("a") as file:
        file.write("W JEV_IMAGE_CACHE miss, x\nW JEV_IMAGE_CACHE hit, x\n")
    ends = settled_size(log, 0.02)
    assert lookups_between(log, begins, ends) == Lookups(misses=1, hits=1)


def environment() -> dict[str, Any]:
    return {
        "settings": {"slots": 4, "workers": 1, "context": 32768, "device": "none"},
        "image": {"width": 512, "height": 286},
        "input": {"questions": 4},
        "machine": {"cpus": 2},
    }


def test_what_is_shown_and_written() -> None:
    results = Results(1, environment(), measured(), note="a note")
    results.blocks[1].asked[0] = reply(192, 0.7, lookups=ONE_MISS)
    output = io.StringIO()
    show(results, Console(file=output, width=150))
    said = output.getvalue()
    assert "512x286 pixels, 4 questions, 4 slots, 1 workers" in said
    assert re.search(r"encoder cache +│ 192, 212 │ 1 miss \+ 3 hits │ +1.89x │ +98 \(95-101\) of 10 │", said)
    assert "All choices agree: yes" in said
    assert "FAULT: off, encoder cache, turn by turn: 5.00e-02 with one worker" in said
    told = json.loads(json.dumps(written(results)))
    assert told["note"] == "a note"
    assert told["summary"]["conditions"][1]["first_lookups"] == [{"misses": 1, "hits": 3}] * 2
    assert [one["condition"]["name"] for one in told["blocks"]] == [kind.name for kind in ORDER]
    assert len(to_json(results.blocks[0])["requests"]) == 6  # type: ignore[arg-type]
    show(Results(4, environment()), Console(file=output))


def test_progress_tells_the_time_left() -> None:
    now, output = [0.0], io.StringIO()
    with Steps(10, Console(file=output), clock=lambda: now[0]) as steps:
        steps.at("one")
        now[0] = 6.0
        steps.step()
        steps.step()
        steps.at("two")
    assert output.getvalue() == "one\ntwo (about 24 s left)\n"


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "slide.png"
    path.write_bytes(image_file())
    return path


def asking(tmp_path: Path, **more: Any) -> Path:
    path = tmp_path / "input.json"
    choice = {"type": "choice", "criteria": {"a": None, "b": None}}
    path.write_text(json.dumps({"state": "A picture.", "questions": {"p": choice, "q": choice}, **more}))
    return path


def test_the_picture_goes_into_the_request(tmp_path: Path, image: Path) -> None:
    question = image_cache_question.read(asking(tmp_path), image)
    assert question.count == 2
    assert json.loads(question.body)["images"][0].startswith("data:image/png;base64,")
    assert question.about["image"]["width"] == 40
    shipped = image_cache_question.read(ROOT / "examples" / "vision_gss_4.json", image)
    assert shipped.count == 4


def test_only_choices_are_taken(tmp_path: Path, image: Path) -> None:
    for more, complaint in (
        ({"questions": {"x": {"type": "noul", "instructions": "?"}}}, "question 'x' is a noul, and this takes choice"),
        ({"questions": {}}, "has no questions"),
        ({"assets": [{}]}, "brings assets of its own"),
    ):
        with pytest.raises(InputError, match=complaint):
            image_cache_question.read(asking(tmp_path, **more), image)
    image.write_bytes(b"\x89PNG\r\n\x1a\n and no more")
    with pytest.raises(InputError, match="cannot be read as a picture"):
        image_cache_question.read(asking(tmp_path), image)


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    model, projector = tiny_vision.write(tmp_path / "models")
    build = stand_in(tmp_path / "build", backend="cpu")
    return {"JEV_IMAGE_CACHE_BUILD": str(build), "MODEL": str(model), "MMPROJ": str(projector)}


def options(image: Path, *words: str) -> list[str]:
    api, backend = two_free_ports()
    return ["--image", str(image), "--device", "cpu", "--port", str(api), "--backend-port", str(backend), *words]


def test_what_it_refuses_before_anything_starts(variables: dict[str, str], image: Path, tmp_path: Path) -> None:
    def refusal(*words: str, **more: str) -> str:
        with pytest.raises(CannotStart) as caught:
            benchmark.prepare(benchmark.parser().parse_args(options(image, *words)), {**variables, **more})
        return caught.value.message

    nowhere = str(tmp_path / "none")
    assert "build_image_cache.py --jobs 8 --backend cpu" in refusal(JEV_IMAGE_CACHE_BUILD=nowhere)
    assert "add --device cpu" in refusal("--device", "ROCm0")
    assert "MMPROJ" in refusal(MMPROJ="")
    assert "PARALLEL has to be" in refusal(PARALLEL="many")
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        for option in ("--port", "--backend-port"):
            assert f"another with {option}" in refusal(option, str(other.getsockname()[1]))
    setup = benchmark.prepare(benchmark.parser().parse_args(options(image)), variables)
    assert (setup.options.context, setup.options.parallel, setup.options.gpu_device) == (32768, 4, "none")


def start(variables: dict[str, str], words: list[str], folder: Path) -> subprocess.Popen[bytes]:
    with (folder / "said.txt").open("wb") as said:
        return subprocess.Popen(
            [sys.executable, "-m", "tools.benchmark_image_cache", *words],
            cwd=ROOT,
            env={**os.environ, **variables, "THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def test_an_unpatched_server_is_found_out_and_nothing_is_left(
    variables: dict[str, str], image: Path, tmp_path: Path
) -> None:
    output = tmp_path / "results" / "bench.json"
    output.parent.mkdir()
    output.write_text("a former run")
    words = options(image, "--output", str(output), "--input", str(asking(tmp_path)))
    running = start(variables, words, tmp_path)
    assert running.wait(120) == 1
    said = (tmp_path / "said.txt").read_text()
    assert "THE CACHE WAS NEVER ASKED" in said
    assert "block 2 of 6, encoder cache (about" in said
    told = json.loads(output.read_text())
    assert [len(one["requests"]) for one in told["blocks"]] == [6, 1]
    assert told["summary"]["conditions"][0]["state_cache"] == ["off-images"]
    assert not any(listens(int(words[at + 1])) for at in (4, 6))
    assert sorted(path.name for path in output.parent.glob("*.log")) == [
        f"bench.{name}.{who}.log" for name in ("1-off", "2-encoder-cache") for who in ("api", "server")
    ]


def test_ctrl_c_ends_the_servers_too(variables: dict[str, str], image: Path, tmp_path: Path) -> None:
    output = tmp_path / "bench.json"
    words = options(image, "--output", str(output), "--input", str(asking(tmp_path)))
    running = start(variables, words, tmp_path)
    port = int(words[words.index("--backend-port") + 1])
    until(lambda: listens(port) or running.poll() is not None, "the start of the inference server")
    os.killpg(running.pid, signal.SIGINT)
    assert running.wait(20) == 130
    begun = time.monotonic()
    until(lambda: not listens(port), "its end", 2.0)
    assert time.monotonic() - begun < 2
    assert json.loads(output.read_text())["note"].startswith("Interrupted")


@pytest.mark.skipif(REAL is None, reason="JEV_IMAGE_CACHE_BUILD names no patched build")
def test_the_real_build_answers_alike_with_one_worker(variables: dict[str, str], image: Path, tmp_path: Path) -> None:
    assert REAL is not None
    image.write_bytes(image_file(size=(512, 286)))
    output = tmp_path / "bench.json"
    words = options(image, "--output", str(output), "--workers", "1")
    assert start(variables | {"JEV_IMAGE_CACHE_BUILD": REAL}, words, tmp_path).wait(300) == 0
    print((tmp_path / "said.txt").read_text())
    told = json.loads(output.read_text())["summary"]
    assert told["differences"]["off, encoder cache, turn by turn"] == 0
    off, on, prefix, both = told["conditions"]
    assert on["first_lookups"] == [{"misses": 1, "hits": 3}] * 2
    assert on["further_lookups"] == {"misses": 0, "hits": 40}
    assert off["further_lookups"] == prefix["further_lookups"] == both["further_lookups"] == {"misses": 0, "hits": 0}
    assert both["first_lookups"] == [{"misses": 1, "hits": 0}]
    assert prefix["state_cache"] == both["state_cache"] == ["shared"]
