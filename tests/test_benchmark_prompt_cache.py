"""The benchmark of prompt caches: what it asks, what it makes of a stream, how it judges, counts and tells."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import respx

from tools.prompt_cache_answers import judge
from tools.prompt_cache_client import ChatClient, Reply
from tools.prompt_cache_material import BadMaterial, Material, Prompt, Question, fresh, load
from tools.prompt_cache_memory import Watch, family, listener
from tools.prompt_cache_options import checked, numbers, parser
from tools.prompt_cache_page import page
from tools.prompt_cache_report import TITLE, parts
from tools.prompt_cache_results import Results, written
from tools.prompt_cache_rounds import (
    AGAIN,
    BACK,
    COMMON,
    FIRST,
    MIXED,
    ONE_BY_ONE,
    ORDER,
    SEQUENTIAL,
    TOGETHER,
    VISIT,
    Asked,
    Batch,
    Bench,
    concurrency,
    mixed,
    order,
    sequential,
    steps,
)
from tools.prompt_cache_server import cache_lines, plain, port_of, without_secrets
from tools.prompt_cache_summary import Return, gone_after, hit, returns, spread, together
from tools.prompt_cache_tables import markdown

OPENED = "Opened accessories are not returnable unless they arrived damaged."
CHANGED, DAMAGED = load().questions[:2]
PROMPT = Prompt("policy", "question", CHANGED)


def test_the_built_in_material_is_the_practice() -> None:
    material = load()
    assert 750 < len(material.policy.split()) < 900, "about 1,000 tokens"
    assert "Unopened accessories may be returned within 30 days with proof of purchase." in material.policy
    assert CHANGED.sentence == DAMAGED.sentence == OPENED
    assert "changed their mind" in CHANGED.text
    assert "arrived damaged" in DAMAGED.text


def test_a_prompt_begins_with_its_edition_and_only_the_question_changes() -> None:
    material = load()
    edition = fresh()
    first, second = material.prompt(edition, 0), material.prompt(edition, 1)
    assert first.system == second.system
    assert first.system.startswith(f"Edition {edition}.")
    assert first.system.endswith(material.policy)
    assert first.user != second.user
    assert material.prompt(edition, len(material.questions)) == first, "counted around"
    assert material.prompt(edition, 0, case=7).user == f"Case 7. {first.user}"
    before = material.prompt(edition, 0, before="Now.")
    assert before.system == f"Now.\n{first.system}"
    assert material.prompt(edition, 0, behind="Now.").user == f"Now.\n{first.user}"
    assert len({fresh() for _ in range(100)}) == 100


@pytest.mark.parametrize(
    ("policy", "questions", "wrong"),
    [
        ("A b.", '[{"question": "q", "sentence": "A b."}]', "two questions"),
        (
            "A b.",
            '[{"question": "q", "sentence": "A b."}, {"question": "q", "sentence": "C."}]',
            "question 2 is not in",
        ),
        ("A b.", '[{"question": "q", "sentence": "A b."}, {"question": ""}]', "question 2 needs a text"),
        ("A b.", '[{"question": "q", "sentence": "A b.", "x": 1}, {}]', "'x'"),
        ("A b.", '[{"question": "q", "sentence": "A b.", "reason": "r"}, {}]', "list of phrases"),
        ("A b.", "[" * 100_000, "not JSON"),
        ("A b.", "{", "not JSON"),
        (" \n", "[]", "empty"),
    ],
)
def test_material_that_cannot_be_used(policy: str, questions: str, wrong: str, tmp_path: Path) -> None:
    (tmp_path / "p").write_text(policy)
    (tmp_path / "q").write_text(questions)
    with pytest.raises(BadMaterial, match=wrong):
        load(tmp_path / "p", tmp_path / "q")
    with pytest.raises(BadMaterial, match="No such file"):
        load(tmp_path / "nowhere", tmp_path / "q")


@pytest.mark.parametrize(
    ("answer", "question", "verdict"),
    [
        (f"“{OPENED}” The customer opened it and changed their mind.", CHANGED, "correct"),
        (f"{OPENED.upper()} REASON: IT WAS OPENED, NOT DAMAGED!", CHANGED, "correct"),
        (
            "opened accessories are\n**not returnable**, unless they arrived damaged - they had opened it",
            CHANGED,
            "correct",
        ),
        (f"The customer changed their mind, so: {OPENED}", CHANGED, "correct"),
        (f"{OPENED} It arrived damaged, so they can return it.", DAMAGED, "correct"),
        (OPENED, CHANGED, "no reason"),
        (f"{OPENED} It is what the policy says.", CHANGED, "no reason"),
        (f"{OPENED} Yes, they changed their mind and can return it.", CHANGED, "no reason"),
        (f"{OPENED} It arrived damaged, but they cannot return it.", DAMAGED, "no reason"),
        (f"{OPENED} Damaged.", DAMAGED, "no reason"),
        ("They changed their mind, so it cannot be returned.", CHANGED, "policy sentence missing"),
        (
            "Unopened accessories may be returned within 30 days with proof of purchase.",
            CHANGED,
            "policy sentence missing",
        ),
        ("Opened accessories are fine. They changed their mind.", CHANGED, "policy sentence missing"),
        ("", CHANGED, "policy sentence missing"),
    ],
)
def test_answers(answer: str, question: Question, verdict: str) -> None:
    assert judge(answer, question) == verdict


def test_every_built_in_question_can_be_answered() -> None:
    for question in load().questions:
        assert judge(f"{question.sentence} This is because of: {question.reason[0]}.", question) == "correct"


def stream(*chunks: object, done: bool = True) -> httpx.Response:
    told = "".join(chunk if isinstance(chunk, str) else f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)
    return httpx.Response(
        200, headers={"content-type": "text/event-stream"}, text=told + ("data: [DONE]\n\n" if done else "")
    )


def piece(**delta: object) -> dict[str, object]:
    return {"choices": [{"delta": delta, "finish_reason": None}]}


USAGE = {"prompt_tokens": 1000, "completion_tokens": 2}
DETAILS = {"prompt_tokens_details": {"cached_tokens": 900}}
TIMINGS = {"cache_n": 800, "prompt_n": 200, "predicted_n": 3}


def asked(*responses: httpx.Response | Exception) -> tuple[Reply, list[dict[str, Any]]]:
    """What came of one request, and the bodies that were sent for it."""

    async def scene() -> Reply:
        client = ChatClient("http://server", model="m", key="k", max_tokens=5)
        try:
            return await client.ask(PROMPT)
        finally:
            await client.aclose()

    with respx.mock:
        route = respx.post("http://server/v1/chat/completions").mock(side_effect=list(responses))
        reply = asyncio.run(scene())
    return reply, [json.loads(call.request.content) for call in route.calls]


def test_only_what_openai_has_is_sent() -> None:
    reply, [body] = asked(stream(piece(role="assistant", content=None), piece(content="a"), piece(content="b")))
    assert body == {
        "model": "m",
        "messages": [{"role": "system", "content": "policy"}, {"role": "user", "content": "question"}],
        "max_tokens": 5,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert (reply.text, reply.error, reply.cached_tokens, reply.cached_from) == ("ab", None, None, "not reported")
    assert reply.first is not None
    assert reply.last is not None
    assert 0 < reply.first < reply.last <= reply.total


@pytest.mark.parametrize(
    "first", [{"content": "a"}, {"reasoning": "a"}, {"reasoning_content": "a"}, {"tool_calls": [{}]}]
)
def test_the_first_token_is_the_first_piece_of_anything(first: dict[str, object]) -> None:
    reply, _ = asked(stream(piece(role="assistant"), piece(content=""), piece(**first)))
    assert reply.first is not None
    assert asked(stream(piece(role="assistant"), piece(content=""), {"choices": []}))[0].first is None


@pytest.mark.parametrize(
    ("last", "cached", "source"),
    [
        ([{"choices": [], "usage": USAGE | DETAILS, "timings": TIMINGS}], 900, "usage"),
        ([{"choices": [], "usage": USAGE, "timings": TIMINGS}], 800, "timings"),
        (
            [{"choices": [], "timings": {"cache_n": 1, "prompt_n": 2, "predicted_n": 1}}, {"timings": TIMINGS}],
            800,
            "timings",
        ),
        ([": keepalive 10/40\n\n", {"choices": [], "usage": USAGE}], 960, "progress"),
        ([": keepalive 10/40\n\n"], None, "not reported"),
        ([{"choices": [], "usage": USAGE}], None, "not reported"),
        ([{"choices": [], "usage": USAGE | {"prompt_tokens_details": {"cached_tokens": 0}}}], 0, "usage"),
    ],
)
def test_where_cached_tokens_are_told(last: list[object], cached: int | None, source: str) -> None:
    reply, _ = asked(stream(piece(content="a"), *last))
    assert (reply.cached_tokens, reply.cached_from) == (cached, source)


def test_a_server_that_refuses_stream_options_is_asked_without() -> None:
    refused = httpx.Response(400, json={"error": {"message": "unknown field"}})
    reply, bodies = asked(refused, stream(piece(content="a")))
    assert reply.error is None
    assert ["stream_options" in body for body in bodies] == [True, False]
    reply, bodies = asked(refused, refused)
    assert reply.error == "HTTP 400: unknown field"


@pytest.mark.parametrize(
    ("response", "error"),
    [
        (httpx.Response(503, json={"detail": "busy"}), "HTTP 503: busy"),
        (httpx.Response(500, text="<html>" + "x" * 5000), "HTTP 500: <html>xxx"),
        (httpx.ConnectError("refused"), "ConnectError: refused"),
        (stream({"error": {"message": "no room"}}), "no room"),
        (stream(piece(content="a"), done=False), "ended before the answer"),
        (stream("data: {\n\n"), "Not understood"),
        (stream("data: []\n\n"), "Not understood"),
        (stream({"choices": ["x"]}), "Not understood"),
    ],
)
def test_what_goes_wrong_is_told_in_a_line(response: httpx.Response | Exception, error: str) -> None:
    reply, _ = asked(response)
    assert reply.error is not None
    assert error in reply.error
    assert len(reply.error) < 300
    assert reply.decode is None


def test_a_server_that_does_not_stream_has_no_first_token() -> None:
    whole = {"choices": [{"message": {"content": "a b"}, "finish_reason": "stop"}], "usage": USAGE | DETAILS}
    reply, _ = asked(httpx.Response(200, json=whole))
    assert (reply.text, reply.first, reply.cached_tokens, reply.output_tokens) == ("a b", None, 900, 2)


def test_tokens_a_second_begin_after_the_first() -> None:
    assert Reply(first=1.0, last=3.0, output_tokens=9).decode == 4.0
    assert Reply(first=1.0, last=1.0, output_tokens=9).decode is None, "it came in one piece"
    assert Reply(first=1.0, last=3.0, output_tokens=1).decode is None
    assert Reply(first=1.0, last=3.0).decode is None


class Remembering:
    """A server that remembers every edition that stands where it stood before, and takes no time."""

    def __init__(self) -> None:
        self.prompts: list[Prompt] = []
        self.known: set[str] = set()

    async def ask(self, prompt: Prompt, *, max_tokens: int | None = None) -> Reply:
        self.prompts.append(prompt)
        known = prompt.system in self.known
        self.known.add(prompt.system)
        return Reply(0.1, 0.2, 0.3, 1000, 8, 900 if known else 10, "usage", OPENED)


def measured(work: Callable[[Bench], Any]) -> tuple[Bench, Remembering]:
    server = Remembering()
    bench = Bench(server, load(), Watch(None))  # type: ignore[arg-type]
    asyncio.run(work(bench))
    return bench, server


def test_sequential_rounds_are_cold_once() -> None:
    bench, server = measured(lambda bench: sequential(bench, 2))
    questions = len(bench.material.questions)
    assert [one.role for one in bench.asked] == ([FIRST] + [AGAIN] * (questions - 1)) * 2
    assert [one.reply.cached_tokens == 900 for one in bench.asked] == [one.role == AGAIN for one in bench.asked]
    assert server.prompts[0].question != server.prompts[questions].question, "another one is first"
    assert {one.verdict for one in bench.asked} == {"no reason", "policy sentence missing"}


def test_concurrent_requests_are_the_same_in_either_way() -> None:
    bench, server = measured(lambda bench: concurrency(bench, (1, 3), 2))
    assert len(bench.asked) == steps(0, (1, 3), (), 2) - 2 * 6
    common = [batch for batch in bench.batches if batch.kind == COMMON]
    own = [batch for batch in bench.batches if batch.kind != COMMON]
    assert len(common) == len(own) == 2 * 2 * 2
    assert all(reply.cached_tokens == 900 for batch in common for reply in batch.replies)
    assert all(reply.cached_tokens == 10 for batch in own for reply in batch.replies)
    assert [batch.way for batch in common[:2]] == [ONE_BY_ONE, TOGETHER]
    assert common[-1].way == ONE_BY_ONE, "they take turns in going first"
    users = [prompt.user for prompt in server.prompts]
    assert users.count("Case 1. " + bench.material.questions[0].text) == 16, "in every batch"


def test_mixed_prefixes_come_back_to_the_first() -> None:
    bench, server = measured(lambda bench: mixed(bench, (1, 3), 1))
    editions = [prompt.edition for prompt in server.prompts]
    assert editions[0] == editions[1]
    assert editions[2] == editions[5]
    assert len(set(editions)) == 4
    assert [one.role for one in bench.asked] == [VISIT, BACK, VISIT, VISIT, VISIT, BACK]
    assert [(one.others, one.hits, one.visits) for one in returns(bench.asked, 950)] == [(0, 1, 1), (2, 1, 1)]


def test_order_changes_nothing_but_the_order() -> None:
    bench, server = measured(lambda bench: order(bench, 1))
    assert [one.reply.cached_tokens for one in bench.asked] == [10, 900, 900, 10, 10, 10]
    behind, before = server.prompts[1], server.prompts[4]
    assert behind.user.startswith("Now: ")
    assert before.system.startswith("Now: ")
    assert len(behind.system + behind.user) == len(before.system + before.user)


def asks(condition: str, role: str, first: float, cached: int | None, **more: Any) -> Asked:
    reply = Reply(first, first + 1, first + 1, 1000, 8, cached, "usage" if cached is not None else "not reported")
    return Asked(condition, 0, role, reply, **more)


def batches() -> list[Batch]:
    """Four requests of 30 s alone, and of 36 s each at once."""
    alone, at_once = (
        Reply(first=3, last=30, total=30, output_tokens=90),
        Reply(first=6, last=36, total=36, output_tokens=90),
    )
    return [
        Batch(COMMON, ONE_BY_ONE, 4, 0, 120.0, (alone,) * 4, None),
        Batch(COMMON, TOGETHER, 4, 0, 36.0, (at_once,) * 4, 2 * 1024**2),
    ]


def test_waiting_and_throughput_are_told_apart() -> None:
    found = together(batches(), COMMON, 4)
    assert found is not None
    assert found.slowdown is not None
    assert found.alone is not None
    assert found.tokens is not None
    assert round(found.slowdown.median) == 20
    assert (found.alone.median, found.wall.median, found.summed.median) == (120, 36, 144)
    assert (found.median.median, found.slowest.median) == (36, 36)
    assert found.completions.median == pytest.approx(4 / 36)
    assert found.tokens.median == 10
    assert (found.cached, found.failed) == (None, 0)


def test_a_batch_with_a_failure_is_counted_and_not_timed() -> None:
    broken = replace(batches()[1], replies=(*batches()[1].replies[:3], Reply(total=0.1, error="HTTP 500")))
    assert together([broken], COMMON, 4) is None
    found = together([*batches(), replace(broken, round=1)], COMMON, 4)
    assert found is not None
    assert (found.failed, found.wall.count) == (1, 1)


def test_a_hit_has_half_of_the_policy() -> None:
    cold = Reply(first=1.0)
    assert hit(Reply(first=1.0, cached_tokens=501, input_tokens=1100), cold, 1000)
    assert not hit(Reply(first=0.1, cached_tokens=500, input_tokens=1100), cold, 1000)
    assert not hit(Reply(first=0.1, cached_tokens=500, input_tokens=1100), cold, None), "of the whole prompt then"
    assert hit(Reply(first=0.4), cold, None)
    assert not hit(Reply(first=0.6), cold, 1000)
    assert hit(Reply(), cold, 1000) is None


@pytest.mark.parametrize(
    ("hits", "told"),
    [
        ({0: 2, 3: 2, 15: 0}, "still there after 3 other prefixes, and gone after 15"),
        ({0: 2, 1: 2}, "still there after 1 other prefix, the most"),
        ({3: 1, 15: 0}, "gone after 3 other prefixes already, the fewest"),
        ({}, "Not measured"),
    ],
)
def test_after_how_many_others_a_prefix_is_gone(hits: dict[int, int], told: str) -> None:
    found = [Return(others, count, 2, False, None, None, None) for others, count in hits.items()]
    assert told in gone_after(found)


def test_spreads_leave_out_what_is_not_known() -> None:
    found = spread([3.0, None, 1.0, 2.5])
    assert found is not None
    assert (found.median, found.least, found.most, found.count) == (2.5, 1.0, 3.0, 3)
    assert found.told(1) == "2.5 (1.0-3.0)"
    assert found.told(scale=1000) == "2500 (1000-3000)"
    assert spread([None]) is None


def results(*, reported: bool = True) -> Results:
    """With something in every part."""
    made = Results({"began": "now", "server": {"build_info": "b1 <script>|"}})
    cached = 900 if reported else None
    made.asked = [
        asks(SEQUENTIAL, FIRST, 1.0, 0 if reported else None, verdict="correct"),
        asks(SEQUENTIAL, AGAIN, 0.1, cached, verdict="policy sentence missing"),
        asks(MIXED, VISIT, 1.0, 0 if reported else None, edition="e"),
        asks(MIXED, BACK, 0.1, cached, edition="e"),
        asks(ORDER, "date and customer after the policy", 0.1, cached),
        asks(ORDER, "date and customer before the policy", 1.0, 0 if reported else None),
        Asked(SEQUENTIAL, 0, AGAIN, Reply(error="HTTP 500: <b>")),
    ]
    made.batches = batches()
    return made


def test_the_report_says_not_reported_and_never_zero() -> None:
    told = markdown(TITLE, parts(results(reported=False)))
    rows = [row.split(" | ") for row in told.splitlines() if row.startswith("| policy ") and "read before" in row]
    assert [row[5] for row in rows] == ["not reported"] * 2
    assert "1 of 1 (inferred)" in told
    told = markdown(TITLE, parts(results()))
    assert "| policy not read before | 1 | 1000 (1000-1000) | 2000 (2000-2000) | 1000 (1000-1000) | 0 (0-0) |" in told
    assert "read before / not read before: 0.10" in told
    assert "1 of 1 |" in told
    assert "| sequential | 2 | 1 | 1 | 0 |" in told
    assert "HTTP 500: &lt;b>" in told
    assert "b1 &lt;script>\\|" in told
    assert "not measured: no process" in told


def test_the_lines_that_are_kept() -> None:
    read = [json.loads(line) for line in written(results(reported=False))]
    assert [line["kind"] for line in read] == ["environment", *["request"] * 7, *["batch"] * 2, "summary"]
    assert read[1]["cached_tokens"] == "not reported"
    assert read[1]["ttft_ms"] == 1000
    assert read[-2]["wall_ms"] == 36000
    assert read[-1]["concurrency"][0]["slowdown"]["median"] == pytest.approx(20)
    assert read[-1]["peak_rss_bytes"]["sequential"] == "not measured"


def test_the_page_stands_by_itself() -> None:
    from tools.prompt_cache_charts import charts

    drawn = charts(results())
    assert set(drawn) == {"sequential", "concurrency", "mixed", "order"}, "there is no memory to draw"
    html = page(TITLE, parts(results()), drawn)
    assert html.count("<svg") == 4
    assert "http://" not in html
    assert "https://" not in html
    assert "<script" not in html
    assert "b1 &lt;script&gt;|" in html
    ids = re.findall(r'\bid="([^"]+)"', html)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'href="#([^"]+)"', html)) | set(re.findall(r"url\(#([^)]+)\)", html)) <= set(ids)
    assert "date and customer after the policy</text>" in html, "text is text"


def test_urls() -> None:
    assert plain("http://127.0.0.1:8080/v1/") == "http://127.0.0.1:8080"
    assert plain("https://host/prefix/") == "https://host/prefix"
    assert port_of("http://localhost:8080") == 8080
    assert port_of("http://localhost") == 80
    assert port_of("http://example.org:8080") is None
    for wrong in ("127.0.0.1:8080", "ftp://host", "http://u:p@host", "http://host/?a", "http://host:x"):
        with pytest.raises(ValueError, match=r"url|port|Port"):
            plain(wrong)


def test_numbers() -> None:
    assert numbers("1, 2,2,16") == (1, 2, 16)
    for wrong in ("", "0", "1,", "-1", "257", "٣"):
        with pytest.raises(ValueError, match="1 to 256"):
            numbers(wrong)


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        (["--rounds", "0"], "--rounds"),
        (["--max-tokens", "0"], "--max-tokens"),
        (["--concurrency", "x"], "--concurrency"),
        (["--prefixes", "0"], "--prefixes"),
        (["--launch", ""], "--launch"),
        (["--launch", "'"], "quotation"),
        (["--policy", "/nowhere"], "/nowhere"),
        (["--url", "nowhere"], "--url"),
    ],
)
def test_what_cannot_be_meant_is_said(
    options: list[str], wrong: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = parser(None)
    words = ["--url", "http://host", "--model", "m", "--output", str(tmp_path), *options]
    with pytest.raises(SystemExit) as ended:
        checked(command, command.parse_args(words))
    assert ended.value.code == 2
    assert wrong in capsys.readouterr().err.splitlines()[-1]


def test_without_the_charts_library_it_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tools.prompt_cache_options.find_spec", lambda name: None)
    command = parser(None)
    words = ["--url", "http://host", "--model", "m", "--output", str(tmp_path)]
    with pytest.raises(SystemExit) as ended:
        checked(command, command.parse_args(words))
    assert ended.value.code == 2
    assert "scripts/bootstrap.py local,bench" in capsys.readouterr().err


def test_the_key_is_the_one_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    def key() -> object:
        parsed: argparse.Namespace = parser(None).parse_args(["--url", "u", "--model", "m"])
        return parsed.key

    monkeypatch.delenv("JEV_API_KEY", raising=False)
    assert key() == "local-dev"
    monkeypatch.setenv("JEV_API_KEY", "from-there")
    assert key() == "from-there"


def test_keys_are_not_told() -> None:
    line = without_secrets("server --api-key abc --hf-token=x --port 1 -k secret-key-1", "secret-key-1")
    assert line == "server --api-key *** --hf-token=*** --port 1 -k ***"


def test_lines_about_caches(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("Prompt Cache: 1\nGET /health\n")
    begin = log.stat().st_size
    log.write_text(log.read_text() + "Prompt Cache: 2\nGET /health\nselected slot by LCP similarity " + "x" * 500)
    assert cache_lines(log, begin) == ("Prompt Cache: 2", ("selected slot by LCP similarity " + "x" * 500)[:160])
    assert cache_lines(tmp_path / "none", 0) == ()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere another program is asked")
def test_the_process_behind_a_port_and_all_below_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert listener(server.getsockname()[1]) == os.getpid()
        port = server.getsockname()[1]
    assert listener(port) is None
    with subprocess.Popen(["sh", "-c", "sleep 60 & echo; wait"], stdout=subprocess.PIPE) as shell:
        assert shell.stdout is not None
        shell.stdout.readline()
        try:
            below = family(os.getpid())
            assert below[0] == os.getpid()
            assert shell.pid in below
            assert len(family(shell.pid)) == 2
        finally:
            subprocess.run(["kill", *map(str, family(shell.pid))], check=True)


def test_the_peak_is_of_a_time() -> None:
    with Watch(os.getpid()) as watch:
        before = watch.look()
        assert before is not None
        taken = bytearray(b"x" * (64 * 1024**2))
        after = watch.look()
        assert after is not None
        assert after - before > 32 * 1024**2
        assert len(taken) == 64 * 1024**2
    assert watch.peak() == max(one.rss for one in watch.samples)
    assert watch.peak(until=watch.samples[0].at) == watch.samples[0].rss
    assert watch.peak(since=watch.samples[-1].at + 1) is None
    with Watch(None) as nobody:
        assert nobody.look() is None
    assert nobody.peak() is None


def test_the_material_takes_any_two_questions(tmp_path: Path) -> None:
    (tmp_path / "p").write_text("One is one.\nTwo is\n  two.")
    asked_ = [{"question": "one?", "sentence": "One is one."}, {"question": "two?", "sentence": "Two is two."}]
    (tmp_path / "q").write_text(json.dumps(asked_))
    made = load(tmp_path / "p", tmp_path / "q")
    assert made == Material(
        "One is one.\nTwo is\n  two.", (Question("one?", "One is one."), Question("two?", "Two is two."))
    )
    assert judge("Two is two, as it was said there.", made.questions[1]) == "correct", "any reason will do"
