"""The table: its words at the widths people have, and what it does with texts that mean harm."""

from __future__ import annotations

import io
import json
import re
import threading
import unicodedata
from typing import Any

import pytest
from rich.cells import cell_len

from jev_local.received import Received, parse
from jev_local.rows import MOST_BARS, rows
from jev_local.safe_text import clean, to_json
from jev_local.terminal import headers_text, table, waiting
from jev_local.wire.headers import Diagnostics, render

REQUEST = {
    "state": "先月の料金を二回も引き落とされました。余分に払った分を今日中に返金してください。"
    "対応がなければ解約します。",
    "questions": {
        "refund": {"type": "noul", "instructions": "お客様は返金を求めていますか。"},
        "department": {
            "type": "choice",
            "instructions": "Which department should take this first?",
            "criteria": {"billing": "money", "technical": None, "other": None},
        },
        "frustration": {
            "type": "score",
            "instructions": "お客様の不満はどれくらい強いですか。",
            "criteria": ["不満はない", "少し不満", "激しい怒り"],
        },
    },
}

ANSWERS = {
    "refund": {"type": "noul", "noul": 0.9131},
    "department": {
        "type": "choice",
        "choice": "billing",
        "confidence": 0.82,
        "probabilities": {"other": 0.07, "billing": 0.88, "technical": 0.05},
    },
    "frustration": {
        "type": "score",
        "score": 1.25,
        "confidence": 0.5,
        "legend": {"0": "不満はない", "1": "少し不満", "2": "激しい怒り"},
        "probabilities": {"0": 0.1, "1": 0.55, "2": 0.35},
    },
}

HEADERS = {"x-jev-local-state-cache": "off-short", "x-jev-local-warnings": "none", "server-timing": "total;dur=1.5"}

AT_40 = """\
State  先月の料金を二回も引き落とされま
       した。余分に払った分を今日…
Model  tiny-lfm2
Took   1.9 s, 4,212 tokens in, 12 tokens
       out

────────────────────────────────────────
refund
お客様は返金を求めていますか。
yes
  yes ████████████████████████▋    91.3%
────────────────────────────────────────
department
Which department should take this first?
billing
  billing   ██████████████████▌    88.0%
  other     █▌                      7.0%
  technical █                       5.0%
  confidence 0.82
────────────────────────────────────────
frustration
お客様の不満はどれくらい強いですか。
1.25 of 2: 少し不満
  0 不満はない █▊                  10.0%
  1 少し不満   █████████▉          55.0%
  2 激しい怒り ██████▎             35.0%
  confidence 0.50
"""

AT_80 = """\
State  先月の料金を二回も引き落とされました。余分に払った分を今日中に返金してく
       ださい。対応がなければ解約します。
Model  tiny-lfm2
Took   1.9 s, 4,212 tokens in, 12 tokens out

Question                 Answer       Probability                          Conf.
───────────────────────  ───────────  ───────────────────────────────────  ─────
refund                   yes          yes █████████████████████▉    91.3%      -
お客様は返金を求めてい
ますか。
───────────────────────  ───────────  ───────────────────────────────────  ─────
department               billing      billing   ███████████████▉    88.0%   0.82
Which department should               other     █▎                   7.0%
take this first?                      technical ▉                    5.0%
───────────────────────  ───────────  ───────────────────────────────────  ─────
frustration              1.25 of 2:   0 不満はない █▌               10.0%   0.50
お客様の不満はどれくら   少し不満     1 少し不満   ████████▎        55.0%
い強いですか。                        2 激しい怒り █████▎           35.0%
"""

AT_120 = """\
State  先月の料金を二回も引き落とされました。余分に払った分を今日中に返金してください。対応がなければ解約します。
Model  tiny-lfm2
Took   1.9 s, 4,212 tokens in, 12 tokens out

Question                             Answer             Probability                                           Confidence
───────────────────────────────────  ─────────────────  ────────────────────────────────────────────────────  ──────────
refund                               yes                yes █████████████████████████████████████▍     91.3%           -
お客様は返金を求めていますか。
───────────────────────────────────  ─────────────────  ────────────────────────────────────────────────────  ──────────
department                           billing            billing   ██████████████████████████████▊      88.0%        0.82
Which department should take this                       other     ██▌                                   7.0%
first?                                                  technical █▊                                    5.0%
───────────────────────────────────  ─────────────────  ────────────────────────────────────────────────────  ──────────
frustration                          1.25 of 2:         0 不満はない ███▎                              10.0%        0.50
お客様の不満はどれくらい強いですか   少し不満           1 少し不満   █████████████████▋                55.0%
。                                                      2 激しい怒り ███████████▎                      35.0%
"""

IN_ASCII = """\
State  ?????????????????????????????????????????????????????
Model  tiny-lfm2
Took   1.9 s, 4,212 tokens in, 12 tokens out

Question                 Answer       Probability                          Conf.
-----------------------  -----------  -----------------------------------  -----
refund                   yes          yes ######################    91.3%      -
???????????????
-----------------------  -----------  -----------------------------------  -----
department               billing      billing   ################    88.0%   0.82
Which department should               other     #                    7.0%
take this first?                      technical #                    5.0%
-----------------------  -----------  -----------------------------------  -----
frustration              1.25 of 2:   0 ????? ##                    10.0%   0.50
??????????????????       ????         1 ????  ###########           55.0%
                                      2 ????? #######               35.0%
"""


class Stream(io.StringIO):
    """Standard output as the table sees it."""

    def __init__(self, *, encoding: str = "utf-8", is_terminal: bool = False) -> None:
        super().__init__()
        self._encoding, self._is_terminal = encoding, is_terminal

    @property
    def encoding(self) -> str:  # type: ignore[override]  # StringIO has none
        return self._encoding

    def isatty(self) -> bool:
        return self._is_terminal


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What rich looks at, whoever runs the tests."""
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS", "LINES", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


def reply_of(answers: dict[str, Any], headers: dict[str, str] | None = None) -> Received:
    document = {"model": "tiny-lfm2", "answers": answers, "usage": {"input_tokens": 4212, "output_tokens": 12}}
    return parse(json.dumps(document).encode(), headers=HEADERS if headers is None else headers, seconds=1.94)


def drawn(
    width: int | None,
    monkeypatch: pytest.MonkeyPatch,
    *,
    request: object = REQUEST,
    reply: Received | None = None,
    stream: Stream | None = None,
    with_diagnostics: bool = False,
) -> str:
    if width is not None:
        monkeypatch.setenv("COLUMNS", str(width))
    return table(request, reply or reply_of(ANSWERS), stream or Stream(), with_diagnostics=with_diagnostics)


@pytest.mark.parametrize(("width", "expected"), [(40, AT_40), (80, AT_80), (120, AT_120)])
def test_the_table(width: int, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert drawn(width, monkeypatch) == expected


def test_without_utf_8_the_table_is_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    text = drawn(80, monkeypatch, stream=Stream(encoding="ascii"))
    assert text.isascii()
    assert text == IN_ASCII


def test_an_encoding_of_its_own_keeps_the_letters_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    text = drawn(80, monkeypatch, stream=Stream(encoding="euc-jp"))
    assert "お客様は返金を" in text
    assert text.encode("euc-jp")


@pytest.mark.parametrize("width", [*range(1, 30, 7), 40, 71, 72, 80, 99, 100, 120, 200])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_no_line_is_wider_than_the_terminal(width: int, encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = drawn(width, monkeypatch, stream=Stream(encoding=encoding), with_diagnostics=True)
    assert max(map(cell_len, text.splitlines())) <= max(width, 2)  # a full-width letter has two cells


def test_a_pipe_gets_no_escape_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b" not in drawn(80, monkeypatch)


def test_a_terminal_gets_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    text = drawn(80, monkeypatch, stream=Stream(is_terminal=True))
    assert "\x1b[32m" in text
    assert re.sub(r"\x1b\[[0-9;]*m", "", text).split() == AT_80.split()


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_a_terminal_that_wants_no_colours_gets_plain_text(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    assert drawn(80, monkeypatch, stream=Stream(is_terminal=True)) == AT_80


def test_diagnostics_stand_under_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    text = drawn(80, monkeypatch, with_diagnostics=True)
    assert text.startswith(AT_80)
    assert text.removeprefix(AT_80).splitlines() == [
        "",
        "X-Jev-Local-State-Cache  off-short",
        "X-Jev-Local-Warnings     none",
        "Server-Timing            total;dur=1.5",
    ]


def test_all_that_our_server_tells_of_reuse_is_among_them(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = render(
        Diagnostics(
            state_cache="shared",
            prefix_tokens=1800,
            source="memory",
            strategy="fan-out",
            cached_tokens=19800,
            processed_tokens=960,
            reevaluated=1,
            timings_ms=(("restore", 12.0), ("decode", 801.5), ("total", 822.25)),
        )
    )
    reply = reply_of(ANSWERS, {name.lower(): value for name, value in sent.items()})
    text = drawn(80, monkeypatch, reply=reply, with_diagnostics=True)
    assert text.partition("\n\nX-Jev-Local")[2].splitlines() == [
        "-State-Cache       shared",
        "X-Jev-Local-Prefix-Tokens     1800",
        "X-Jev-Local-Prefix-Source     memory",
        "X-Jev-Local-Strategy          fan-out",
        "X-Jev-Local-Cached-Tokens     19800",
        "X-Jev-Local-Processed-Tokens  960",
        "X-Jev-Local-Reevaluated       1",
        "X-Jev-Local-Confidence        typesafe",
        "X-Jev-Local-Warnings          none",
        "Server-Timing                 restore;dur=12.00, decode;dur=801.50,",
        "                              total;dur=822.25",
    ]
    assert headers_text(reply.headers) == "".join(f"{name}: {value}\n" for name, value in sent.items())


def test_warnings_are_shown_without_being_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    text = drawn(80, monkeypatch, reply=reply_of(ANSWERS, {"x-jev-local-warnings": "low-mass=3"}))
    assert "Warnings  low-mass=3\n" in text


def test_an_answer_to_doubt_carries_a_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    doubted = {
        **ANSWERS,
        "refund": {**ANSWERS["refund"], "x_warnings": ["low-mass", "wants-to-think"]},
        "department": {**ANSWERS["department"], "x_warnings": []},
        "frustration": {**ANSWERS["frustration"], "x_warnings": ["low-mass"]},
    }
    assert drawn(120, monkeypatch, reply=reply_of(doubted)).splitlines()[6:16] == [
        "refund                               yes                yes █████████████████████████████████████▍     91.3%"
        "           -",
        "お客様は返金を求めていますか。       ! low-mass",
        "                                     ! wants-to-think",
        AT_120.splitlines()[5],
        *AT_120.splitlines()[9:12],
        AT_120.splitlines()[5],
        *AT_120.splitlines()[13:15],
    ]
    narrow = drawn(40, monkeypatch, reply=reply_of(doubted)).splitlines()
    assert narrow[narrow.index("yes") + 1 :][:2] == ["! low-mass", "! wants-to-think"]
    assert narrow.count("! low-mass") == 2
    assert drawn(80, monkeypatch, reply=reply_of(doubted)).count("! low-mass") == 2


def test_a_choice_of_255_shows_its_top_and_counts_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"option-{index}" for index in range(255)]
    shares = dict.fromkeys(reversed(names), 0.001) | {"option-200": 0.746}
    request = {"state": "s", "questions": {"pick": {"type": "choice", "criteria": dict.fromkeys(names)}}}
    answer = {"type": "choice", "choice": "option-200", "confidence": 0.7, "probabilities": shares}
    text = drawn(80, monkeypatch, request=request, reply=reply_of({"pick": answer}))
    # Equals stand in the order of the request, whatever order the server had.
    assert re.findall(r"option-\d+ ", text) == [
        "option-200 ",
        "option-200 ",
        "option-0 ",
        "option-1 ",
        "option-2 ",
        "option-3 ",
    ]
    assert re.search(r"… 250 more .* 25\.0%", text)


def test_a_choice_that_fits_is_shown_whole() -> None:
    shares = {str(index): 1 / MOST_BARS for index in range(MOST_BARS)}
    answer = {"type": "choice", "choice": "0", "confidence": 0.0, "probabilities": shares}
    (row,) = rows({}, reply_of({"q": answer}))
    assert (len(row.bars), row.hidden) == (MOST_BARS, 0)


def test_rows_follow_the_request_and_miss_nothing() -> None:
    questions = {
        "silent": {"type": "noul", "instructions": {"ask": "何"}},
        "bare": {"type": "noul", "criteria": {"true": "it is so"}},
        "area": {"type": "box", "instructions": "Where?"},
        "odd": 3,
    }
    answers = {
        "unasked": {"type": "noul", "noul": 0.5},
        "area": {"type": "box", "box": {"top": 0.5}},
        "bare": {"type": "noul", "noul": 0.49},
    }
    assert [(row.id, row.question, row.answer) for row in rows({"questions": questions}, reply_of(answers))] == [
        ("silent", '{"ask": "何"}', "(no answer)"),
        ("bare", "it is so", "no"),
        ("area", "Where?", '{"type": "box", "box": {"top": 0.5}}'),
        ("odd", "", "(no answer)"),
        ("unasked", "", "yes"),
    ]


@pytest.mark.parametrize("request_", [None, [], "text", {"questions": []}, {"questions": {}}])
def test_a_request_of_any_shape_can_stand_next_to_answers(request_: object, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "refund" in drawn(80, monkeypatch, request=request_)


EVIL = "a\x1b]0;gone\x07b\x1b[2Jc\u202ed\x9be\x00f\ud800g[red]h[/red]:smile:\u2028i\r\nj"


@pytest.mark.parametrize("width", [40, 80])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "euc-jp"])
def test_texts_that_mean_harm_are_only_shown(width: int, encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    question = {"type": "choice", "instructions": EVIL, "criteria": {EVIL: EVIL}}
    request = {"state": {EVIL: EVIL}, "questions": {EVIL: question, "s": {"type": "score", "instructions": [EVIL]}}}
    answers = {
        EVIL: {"type": "choice", "choice": EVIL, "confidence": 1, "probabilities": {EVIL: 1}, "x_warnings": [EVIL]},
        "s": {"type": "score", "score": 0, "confidence": 1, "legend": {"0": EVIL}, "probabilities": {"0": 1}},
        "o": {"type": EVIL},
    }
    hostile = {"x-jev-local-warnings": EVIL, f"x-jev-local-{EVIL}": EVIL}
    reply = reply_of(answers, hostile)
    text = drawn(
        width, monkeypatch, request=request, reply=reply, stream=Stream(encoding=encoding), with_diagnostics=True
    )
    document = to_json(reply.document, encoding)
    for shown in (text, document, headers_text(hostile)):
        assert {char for char in shown if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")} == {"\n"}
    assert text.encode(encoding)
    assert document.encode(encoding)
    assert "[red]h[/red]:smile:" in "".join(text.split())
    assert json.loads(document) == reply.document


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        (" two\t\n lines\u3000wide ", "two lines wide"),
        ("\x1b[31m\x7f\x9b", r"\x1b[31m\x7f\x9b"),
        ("\u202e\u2066\ufeff", r"\u202e\u2066\ufeff"),
        ("\ud800", r"\ud800"),
        ("\U000e0001", r"\U000e0001"),
        ("👩\u200d🚀 می\u200cخواهم", "👩\u200d🚀 می\u200cخواهم"),
    ],
)
def test_clean(text: str, expected: str) -> None:
    assert clean(text) == expected


def test_a_short_wait_is_not_mentioned() -> None:
    stream = Stream(is_terminal=True)
    with waiting("Waiting", stream, after=60):
        pass
    assert stream.getvalue() == ""


def test_a_long_wait_is_shown_and_wiped() -> None:
    told = threading.Event()

    class Watched(Stream):
        def write(self, text: str) -> int:
            if "Waiting 0 s" in text:
                told.set()
            return super().write(text)

    stream = Watched(is_terminal=True)
    with waiting("Waiting", stream, after=0.01):
        assert told.wait(10)
    assert stream.getvalue().endswith("\x1b[2K")


@pytest.mark.parametrize("stream", [Stream(), Stream(is_terminal=True)])
def test_where_nobody_watches_a_wait_is_not_shown(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    threads = threading.active_count()
    with waiting("Waiting", stream, after=0.0):
        assert threading.active_count() == threads
    assert stream.getvalue() == ""
