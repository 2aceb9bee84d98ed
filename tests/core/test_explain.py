from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jev_local.core import explain, parting, reasons
from jev_local.core.compared import Compared, where
from jev_local.core.explain import Side
from jev_local.core.kinds import standing
from jev_local.core.parting import PromptPiece, Rendered, difference, edited, place, replaced, shared_length
from jev_local.core.plan import Tokens, share
from jev_local.core.reasons import Known, WhyNot
from jev_local.core.sharing import Policy, Profile, Trial
from jev_local.core.values import Kind

POLICY = "\nUnopened accessories may be returned within the time given on the receipt. Opened ones may not."
JA = "\n未開封の付属品は購入証明とともに返品できます。開封済みの品は到着時に破損していた場合のみ可能です。"


def stands(left: str, right: str) -> tuple[Kind, str, str]:
    found = standing(left, right, shared_length(left, right))
    return found.kind, left[slice(*found.left)], right[slice(*found.right)]


VALUES: list[tuple[Kind, str, str, str, str]] = [
    # kind, what stands before, the two values, what stands behind
    ("date-time", "Date: ", "2026-11-29", "2026-11-30", POLICY),
    ("date-time", "Today is ", "2026-11-29", "2027-01-02", POLICY),
    ("date-time", "Now: ", "2026-11-29T08:15:00Z", "2026-11-29T08:16:12Z", POLICY),
    ("date-time", "Now: ", "2026-11-29 08:15:00.123+09:00", "2026-11-29 08:15:00.777+09:00", POLICY),
    ("date-time", "On ", "11/29/2026", "11/30/2026", POLICY),
    ("date-time", "On ", "2026/11/29", "2026/12/01", POLICY),
    ("date-time", "On ", "29.11.2026", "30.11.2026", POLICY),
    ("date-time", "Today is ", "November 29, 2026", "December 1, 2026", POLICY),
    ("date-time", "Today is ", "29 November 2026", "30 November 2026", POLICY),
    ("date-time", "Today is ", "Sun, 29 Nov 2026 08:15:00 GMT", "Mon, 30 Nov 2026 08:15:00 GMT", POLICY),
    ("date-time", "Today is the ", "29th of November", "30th of November", POLICY),
    ("date-time", "It is ", "Sunday", "Monday", POLICY),
    ("date-time", "It is ", "10:30", "10:45", POLICY),
    ("date-time", "It is ", "10:30", "10:30:15", POLICY),
    ("date-time", "It is ", "9:05 am", "9:05 pm", POLICY),
    ("date-time", '{"timestamp":', "1764460800", "1764460999", ',"policy":"as ever, and long enough"}'),
    ("date-time", "本日は", "2026年11月29日", "2026年11月30日", JA),
    ("date-time", "本日は", "2026年11月29日（日）", "2026年12月1日（火）", JA),
    ("date-time", "本日は", "令和8年11月29日", "令和9年1月3日", JA),
    ("date-time", "本日は", "令和元年五月一日", "令和二年五月一日", JA),
    ("date-time", "受付: ", "R8.11.29", "R8.11.30", JA),
    ("date-time", "本日は", "11月29日", "12月1日", JA),
    ("date-time", "今は", "午前10時15分", "午後3時", JA),
    ("date-time", "今は", "10時15分", "10時45分", JA),
    ("date-time", "受付日時：", "２０２６年１１月２９日", "２０２６年１１月３０日", JA),
    ("id", "Request ", "3fa85f64-5717-4562-b3fc-2c963f66afa6", "0b8e9f1c-1111-4222-8333-944455556666", POLICY),
    ("id", "Request ", "3fa85f64-5717-4562-b3fc-2c963f66afa6", "3fa85f64-5717-4562-b3fc-2c963f66afa7", POLICY),
    ("id", "Trace ", "01ARZ3NDEKTSV4RRFFQ69G5FAV", "01ARZ3NDEKTSV4RRFFQ69G5FAW", POLICY),
    ("id", "Commit ", "d6b1a2c3d4e5f60718293a4b", "a6b1a2c3d4e5f60718293a4c", POLICY),
    ("id", "Customer ", "cus_8fh3k2", "cus_9zz1p0", POLICY),
    ("id", "Ticket ", "ORD-2026-00017X", "ORD-2026-00018X", POLICY),
    ("id", '"session_id": "', "abcdef", "ghijkl", '", "policy": "as ever, and long enough"'),
    ("id", "注文番号：", "A-10023", "A-10024", JA),
    ("id", "注文", "A-10023", "B-77", "を受け付けました。" + JA),
    ("number", "Customer ", "4711", "4812", POLICY),
    ("number", "There are ", "14", "30", " days." + POLICY),
    ("number", "It costs ", "1,299.50", "1,300", " euros." + POLICY),
    ("number", "Customer 47", "11", "12", POLICY),
    ("number", "期限は", "14", "30", "個です。" + JA),
    ("user-name", "User: ", "Alice", "Bob", POLICY),
    ("user-name", "User: ", "Alice Smith", "Alina Smith", POLICY),
    ("user-name", "customer_name=", "Müller", "Muñoz", POLICY),
    ("user-name", '{"customer":"', "Alice", "Bob", '","policy":"as ever, and long enough"}'),
    ("user-name", '{"name":"', "Alice", "Bob", '","policy":"as ever, and long enough"}'),
    ("user-name", "<user>", "Alice", "Bob", "</user>" + POLICY),
    ("user-name", "username: ", "alice92", "bob17", POLICY),
    ("user-name", "Dear ", "Alice", "Bob", "," + POLICY),
    ("user-name", "Dear Ms. ", "Kimura", "Tanaka", ":" + POLICY),
    ("user-name", "顧客名：", "山田太郎", "鈴木花子", JA),
    ("user-name", "氏名：", "山田 太郎", "山本 太郎", JA),
    ("user-name", "ユーザー: ", "さくら", "ひまり", JA),
    ("user-name", '{"顧客":"', "山田", "鈴木", '","方針":"未開封の付属品は購入証明とともに返品できます。"}'),
    ("user-name", "", "山田", "鈴木", "様、いつもありがとうございます。" + JA),
    ("user-name", "", "さくら", "ひまり", "さん、こんにちは。" + JA),
    ("user-name", "私の名前は", "山田花子", "鈴木一郎", "です。" + JA),
]


@pytest.mark.parametrize(("kind", "before", "left", "right", "behind"), VALUES)
def test_the_whole_value_around_the_place_tells_its_kind(
    kind: Kind, before: str, left: str, right: str, behind: str
) -> None:
    found = stands(before + left + behind, before + right + behind)
    assert found[0] == kind
    if kind not in ("number", "id"):
        assert found[1:] == (left, right)
    assert stands(before + right + behind, before + left + behind)[0] == kind, "and the other way round"
    lines = "The lines before it are the same in both requests, whatever they are about.\n" * 9
    assert stands(lines + before + left + behind, lines + before + right + behind) == found, "and far from the start"


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("May I return it?", "Can I return it?"),
        ("User: Can I return an opened one?", "User: Do I have to pay for it?"),
        ("この仕様で返品する方法", "この同様で返品する方法"),
        ("お客様は返品できます", "お子様は返品できます"),
        ("a well-known shop", "a well-liked shop"),
        ("version one", "version two"),
        ("ユーザーは返品できます", "ユーザーは交換できます"),
        ("I want my money back.", "I want a new lamp."),
        ("", "Anything."),
    ],
)
def test_what_only_looks_like_a_value_is_text(left: str, right: str) -> None:
    assert stands(left, right)[0] == "text"


@pytest.mark.parametrize(
    ("left", "right", "one", "other"),
    [
        ("a b", "a  b", " ", "  "),
        ("a\nb", "a\r\nb", "\n", "\r\n"),
        ("a b c", "ab c", " ", ""),
        ("the end", "the end \n", "", " \n"),
        ("返品 できます", "返品　できます", " ", "　"),
        ("a b", "a\u200b b", " ", "\u200b "),
        ("12 May 2026", "12  May 2026", " ", "  "),
    ],
)
def test_white_space_alone(left: str, right: str, one: str, other: str) -> None:
    assert stands(left, right) == ("white-space", one, other)


def test_json_members_in_another_order() -> None:
    a = {"role": "agent", "rules": [{"days": 30, "proof": True}], "name": "Alice"}
    b = {"rules": [{"proof": True, "days": 30}], "role": "agent", "name": "Alice"}
    one, other = json.dumps(a), json.dumps(b)
    assert stands(f"Text:\n{one}\nQ", f"Text:\n{other}\nQ") == ("key-order", one, other)
    inner = [json.dumps({"x": 1, "rules": rules}) for rules in (a["rules"], b["rules"])]
    assert stands(*inner)[1:] == ('{"days": 30, "proof": true}', '{"proof": true, "days": 30}'), "the innermost"
    assert stands(json.dumps({"a": 1, "b": 2}), json.dumps({"b": 3, "a": 1}))[0] != "key-order", "other values"
    assert stands('{"a": [1, 2]}', '{"a": [2, 1]}')[0] == "number", "an array has an order"


def test_json_that_never_ends_or_is_deep_is_no_json() -> None:
    assert stands("{" * 50_000 + "a", "{" * 50_000 + "b")[0] == "text"
    deep = '{"a":' * 5000
    assert stands(deep + "1" + "}" * 5000, deep + "2" + "}" * 5000)[0] == "number"


def test_text_is_the_words_up_to_where_both_go_on_alike() -> None:
    found = stands("It was broken on arrival." + POLICY, "It was brought back unopened on arrival." + POLICY)
    assert found == ("text", "broken", "brought back unopened")
    assert stands("It is a lamp", "It is a chair") == ("text", "lamp", "chair")


def test_a_value_that_only_one_has_is_taken_alone() -> None:
    assert stands("2026-11-29" + POLICY, POLICY.strip()) == ("date-time", "2026-11-29", "")
    assert stands("On 2026-11-29." + POLICY, "On some day." + POLICY) == ("date-time", "2026-11-29", "some day")


# Where, by what the requests are


def chat(*messages: tuple[str, str], **more: Any) -> Compared:
    document = {"messages": [{"role": role, "content": text} for role, text in messages], **more}
    return Compared("chat", document=document)


def tool(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **more}}


SYSTEM, USER = ("system", "Be brief."), ("user", "Why?")


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (chat(SYSTEM, USER), chat(SYSTEM, USER), "elsewhere"),
        (chat(SYSTEM, USER), chat(SYSTEM, ("user", "How?")), "elsewhere"),
        (chat(SYSTEM, USER), chat(("system", "Be kind."), USER), "instructions"),
        (chat(SYSTEM, USER), chat(USER), "roles"),
        (chat(SYSTEM, USER), chat(SYSTEM, USER, ("assistant", "So."), USER), "elsewhere"),
        (chat(SYSTEM, USER), chat(SYSTEM, USER, tools=[{"type": "function"}]), "roles"),
        (chat(tools=[tool("search")]), chat(tools=[tool("mail")]), "roles"),
        (chat(tools=[tool("search")]), chat(tools=[tool("search", about="files")]), "instructions"),
        (chat(USER, tools=[{"a": 1, "b": 2}]), chat(USER, tools=[{"b": 2, "a": 1}]), "elsewhere"),
        (chat(USER), chat(USER, chat_template_kwargs={"enable_thinking": True}), "instructions"),
        (chat(USER), Compared("decision", state="Why?"), "roles"),
        (Compared("text", model="x"), Compared("text", model="y"), "model"),
        (Compared("decision", state="a"), Compared("decision", state="b"), "elsewhere"),
    ],
)
def test_the_requests_themselves_tell_where_to_look(a: Compared, b: Compared, expected: str) -> None:
    assert where(a, b) == where(b, a) == expected


def test_instructions_are_another_template_unless_only_a_value_in_them_changes() -> None:
    def kind(left: str, right: str, told: Any) -> Kind:
        found = difference(left, right, told)
        assert found is not None
        return found.standing.kind

    assert kind("Be brief." + POLICY, "Be kind." + POLICY, "instructions") == "template"
    assert kind("2026-11-29" + POLICY, "2026-11-30" + POLICY, "instructions") == "date-time"
    assert kind("2026-11-29" + POLICY, "2026-11-30" + POLICY, "roles") == "template"
    assert kind("2026-11-29" + POLICY, "2026-11-30" + POLICY, "model") == "model"
    assert difference("same", "same") is None


# Arithmetic

TEXTS = st.text(alphabet='ab 0{}"\n年様', max_size=60)


@given(TEXTS, TEXTS, TEXTS)
def test_spans_lie_in_their_texts_and_begin_in_what_both_have(head: str, left: str, right: str) -> None:
    left, right = head + left, head + right
    at = shared_length(left, right)
    assert left[:at] == right[:at]
    assert left[at : at + 1] != right[at : at + 1] or left == right
    if left == right:
        return
    found = standing(left, right, at)
    assert found.left[0] == found.right[0] <= at
    for text, (begin, end) in ((left, found.left), (right, found.right)):
        assert 0 <= begin <= end <= len(text)
    assert max(found.left[1], found.right[1]) >= at
    told = difference(left, right)
    assert told is not None
    seen = place(left, right, told)
    assert left[:at].endswith(seen.before)
    assert (left[at:].startswith(seen.left), right[at:].startswith(seen.right)) == (True, True)
    assert max(map(len, (seen.before, seen.left, seen.right))) <= parting.CONTEXT


PIECES = st.lists(st.text(alphabet="abc", max_size=5), min_size=1, max_size=5)


@given(PIECES, st.data())
def test_a_replaced_span_is_that_of_the_joined_text(texts: list[str], data: st.DataObject) -> None:
    pieces = tuple(PromptPiece(text, control=bool(i % 2)) for i, text in enumerate(texts))
    whole = "".join(texts)
    begin = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(begin, len(whole)))
    made = replaced(pieces, (begin, end), "XY")
    assert "".join(piece.text for piece in made) == whole[:begin] + "XY" + whole[end:]
    assert [piece.control for piece in made] == [piece.control for piece in pieces]


def rendered(*texts: str, stem: int, behind: str = "?") -> Rendered:
    pieces = tuple(PromptPiece(text, control=False) for text in (*texts, behind))
    tokens = (1, *"".join((*texts, behind)).encode())
    return Rendered(pieces, tokens, stem, (1,))


def test_without_the_value_the_rest_of_both_is_the_same() -> None:
    one, other = (
        rendered("Date: ", date + POLICY, stem=9 + len(date + POLICY)) for date in ("2026-11-29", "2026-12-1")
    )
    found = difference(one.text, other.text)
    assert found is not None
    pieces = edited(one, other, found.standing)
    left, right = (
        each.with_tokens(made, [tuple(piece.text.encode()) for piece in made])
        for each, made in zip((one, other), pieces, strict=True)
    )
    assert left.text == right.text == "Date: " + POLICY + "?"
    assert left.tokens == right.tokens == (1, *left.text.encode())
    assert (left.stem, right.stem) == (one.stem - 10, other.stem - 9)


def test_a_begin_that_the_first_piece_has_already_is_not_put_there_again() -> None:
    one = rendered("a", stem=2)
    assert one.with_tokens(one.pieces, [(1, 97), (63,)]).tokens == (1, 97, 63)
    assert one.with_tokens(one.pieces, [(97,), (63,)]).tokens == (1, 97, 63)


def test_what_is_only_written_differently_is_made_alike() -> None:
    one, other = rendered('{"a": 1, "b": 2}', stem=17), rendered('{"b": 2, "a": 1}', stem=17)
    found = difference(one.text, other.text)
    assert found is not None
    left, right = edited(one, other, found.standing)
    assert left == right == one.pieces


# Reasons

EXACT = Profile(trials=(Trial("in-place", True, 1.0), Trial("restore", True, 1.0)), truncates=True)
LONG = share((1,) * 300, [(2, 3), (4, 5)])


@pytest.mark.parametrize(
    ("policy", "profile", "plan", "expected"),
    [
        (Policy("auto"), EXACT, LONG, None),
        (Policy("off"), EXACT, LONG, "off"),
        (Policy("auto"), Profile(reason="nothing works"), LONG, "not-shared"),
        (Policy("auto", keeps=False), EXACT, LONG, "keeps-nothing"),
        (Policy("auto"), EXACT, share((1,) * 300, [(2, 3)]), "single-question"),
        (Policy("auto"), EXACT, share((1,) * 200, [(2, 3), (4, 5)]), "too-short"),
        (Policy("shared"), EXACT, share((1,) * 200, [(2, 3), (4, 5)]), None),
    ],
)
def test_why_a_state_is_not_kept(policy: Policy, profile: Profile, plan: Any, expected: WhyNot | None) -> None:
    assert explain.why_not_kept(policy, profile, plan) == expected


@pytest.mark.parametrize(
    ("policy", "side", "wanted", "expected"),
    [
        (Policy("auto"), Side("chat", 300, 256), True, None),
        (Policy("auto"), Side("chat", 300, 255), True, "too-short"),
        (Policy("shared"), Side("chat", 300, 255), True, None),
        (Policy("off"), Side("chat", 300, 256), True, "off"),
        (Policy("auto", keeps=False), Side("chat", 300, 256), True, "keeps-nothing"),
        (Policy("auto"), Side("chat", 300, 256), False, "unwanted"),
        (Policy("auto"), Side("text", 300, 300), True, "no-part"),
    ],
)
def test_why_a_chat_is_not_kept(policy: Policy, side: Side, wanted: bool, expected: WhyNot | None) -> None:
    assert explain.why_chat_not_kept(policy, EXACT, side, wanted=wanted) == expected
    assert explain.why_chat_not_kept(policy, Profile(), side, wanted=wanted) in ("off", "not-shared")


KNOWN = Known(
    asked=True, restarted=False, reused=0, fate="unknown", why_not=None, truncates=True, tokens=300, least=256
)


@pytest.mark.parametrize(
    ("changes", "outcomes", "word"),
    [
        ({}, ["same", "same", "unknown", "possible"], "Ask once more"),
        ({"reused": 290, "fate": "held"}, ["same", "same", "held", "possible"], "290 tokens were reused"),
        ({"reused": 23, "fate": "evicted"}, ["same", "same", "evicted", "possible"], "--prefix-cache-bytes"),
        ({"reused": 23, "fate": "held"}, ["same", "same", "held", "possible"], "Nothing to change"),
        ({"reused": 23, "why_not": "too-large"}, ["same", "same", "never-kept", "possible"], "of this length"),
        ({"reused": 23, "restarted": True}, ["same", "restarted", "unknown", "possible"], "one server process"),
        ({"fate": "held"}, ["same", "same", "held", "possible"], "Nothing to change"),
        ({"why_not": "goes-on"}, ["same", "same", "never-kept", "possible"], "second request once"),
        ({"fate": "evicted"}, ["same", "same", "evicted", "possible"], "--prefix-cache-bytes"),
        ({"why_not": "single-question"}, ["same", "same", "never-kept", "possible"], "in one request"),
        ({"why_not": "too-short"}, ["same", "same", "never-kept", "possible"], "--cache-min-tokens"),
        ({"why_not": "off"}, ["same", "same", "never-kept", "possible"], "--state-cache auto"),
        ({"restarted": True}, ["same", "restarted", "unknown", "possible"], "one server process"),
        ({"asked": False}, ["same", "unknown", "unknown", "possible"], "explain again"),
        ({"truncates": False}, ["same", "same", "unknown", "impossible"], "cannot be cut back"),
    ],
)
def test_checks_come_in_one_order_and_the_advice_follows(
    changes: dict[str, Any], outcomes: list[str], word: str
) -> None:
    known = replace(KNOWN, **changes)
    looked = reasons.checks(known)
    assert [check.check for check in looked] == ["text", "process", "entry", "cut-back"]
    assert [check.outcome for check in looked] == outcomes
    assert word in reasons.advice(known)


@pytest.mark.parametrize(
    ("reused", "tokens", "most"),
    [
        (930, 930, True),
        (2000, 930, True),  # of several questions, or of a question behind it that begins alike
        (837, 930, True),
        (836, 930, False),
        (23, 930, False),
        (23, 30, False),
        (1, 1, True),
        (0, 930, False),
        (0, 0, False),
    ],
)
def test_only_most_of_the_part_is_a_find(reused: int, tokens: int, most: bool) -> None:
    assert reasons.is_most(reused, tokens) is most
    told = reasons.advice(replace(KNOWN, reused=reused, tokens=tokens, fate="evicted"))
    assert told.startswith("Nothing is wrong") is most


# What two requests share is 1, 2, 3; what each is about comes behind it.
PROMPT = (1, 2, 3, 7, 8)


@pytest.mark.parametrize(
    ("saved", "decision", "chat"),
    [
        ((1, 2, 3), True, True),
        ((1, 2), False, True),
        ((1, 2, 3, 7), False, True),
        (PROMPT, False, False),
        ((*PROMPT, 9), False, False),
        ((1, 2, 3, 4), False, False),
        ((1, 2, 3, 4, 5, 6, 7), False, False),
        ((9, 1, 2, 3), False, False),
    ],
    ids=[
        "its own",
        "a shorter one",
        "a longer one",
        "all of it",
        "beyond it",
        "another end",
        "a longer other",
        "other",
    ],
)
def test_a_decision_finds_its_own_state_and_a_chat_what_its_prompt_begins_with(
    saved: Tokens, decision: bool, chat: bool
) -> None:
    assert explain.finds("decision", PROMPT, (1, 2, 3), saved) is decision
    assert explain.finds("chat", PROMPT, (1, 2, 3), saved) is chat
    assert explain.finds("text", PROMPT, PROMPT, saved) is chat


@pytest.mark.parametrize("why", get_args(WhyNot))
def test_every_reason_has_a_sentence_and_a_remedy(why: WhyNot) -> None:
    known = replace(KNOWN, why_not=why)
    assert "{" not in reasons.checks(known)[2].says
    assert reasons.advice(known).endswith(".")


@pytest.mark.parametrize(
    ("a", "b", "agree", "whole"),
    [
        (("decision", 100), ("decision", 100), 100, True),
        (("decision", 100), ("decision", 100), 99, False),
        (("decision", 100), ("decision", 120), 110, False),
        (("chat", 100), ("chat", 140), 105, True),
        (("chat", 100), ("chat", 140), 99, False),
        (("chat", 100), ("decision", 100), 100, False),
    ],
)
def test_a_decision_needs_the_same_state_and_a_chat_may_go_on(a: Any, b: Any, agree: int, whole: bool) -> None:
    one, other = (Side(form, 200, stem) for form, stem in (a, b))
    assert explain.agrees_whole(one, other, agree) is whole


@pytest.mark.parametrize("kind", [kind for kind in explain.WORDS if kind != "question"])
def test_no_advice_moves_or_drops_instructions(kind: Kind) -> None:
    seen = parting.Place(kind, "before", "left", "right")
    told = explain.advice_on(seen, (parting.Move(kind, "l", "r", 40),), 10)
    assert told.endswith(".")
    for word in ("system", "remove", "drop", "delete", "shorten", "permission"):
        assert word not in told
    assert ("40 tokens" in told) is (kind not in ("template", "model"))


def test_all_that_changes_is_named_and_a_rule_stays_where_it_is() -> None:
    seen = parting.Place("date-time", "before", "left", "right")
    moves = (parting.Move("date-time", "l", "r", 25), parting.Move("number", "1", "2", 375))
    assert explain.advice_on(seen, moves, 19) == (
        "If the date or time and the number change from request to request, put them behind the text that stays the "
        "same: 375 tokens would agree then, instead of 19. A number that belongs to a rule is to stay where it is."
    )
    assert "instead" not in explain.advice_on(seen, moves[:1], 25)
