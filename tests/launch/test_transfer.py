"""One download against a host that breaks off, pauses, refuses and misleads."""

import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from jev_local.launch import transfer
from jev_local.launch.remote import Remote, Unreachable, number
from jev_local.launch.transfer import TooLong, download, learn_size
from standins import StandIn, stand_in

CONTENT = bytes(range(256)) * 4096 * 4
MB = 1024 * 1024
PATH = "/files/a.bin"
HUB_PATH = "/owner/name/resolve/0123/a.bin"


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    monkeypatch.setattr(transfer, "PAUSE", 0.0)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with stand_in({PATH: CONTENT, HUB_PATH: CONTENT}) as state:
        yield state


@pytest.fixture
def part(tmp_path: Path) -> Path:
    return tmp_path / "part"


def remote(host: StandIn, path: str = PATH, **others: object) -> Remote:
    return Remote("the host", host.url(path), **others)  # type: ignore[arg-type]


def get(host: StandIn, part: Path, size: int | None = len(CONTENT), path: str = PATH) -> bytes:
    download(remote(host, path), part, size=size, progress=lambda done, total: None)
    return part.read_bytes()


def test_the_file_arrives_as_it_is_and_progress_is_told(host: StandIn, part: Path) -> None:
    told: list[tuple[int, int | None]] = []
    download(remote(host), part, size=None, progress=lambda done, total: told.append((done, total)))
    assert part.read_bytes() == CONTENT
    assert (told[0], told[-1]) == ((0, len(CONTENT)), (len(CONTENT), len(CONTENT)))
    assert [asked.encoding for asked in host.asked] == ["identity"]


def test_a_cut_connection_is_taken_up_again(host: StandIn, part: Path) -> None:
    host.cuts = [MB, MB, MB]
    assert get(host, part) == CONTENT
    assert host.ranges == ["", f"bytes={MB}-", f"bytes={2 * MB}-", f"bytes={3 * MB}-"]


@pytest.mark.parametrize("length", ["chunked", "closed"])
def test_a_cut_is_seen_without_a_length_too(host: StandIn, part: Path, length: str) -> None:
    host.length = length  # type: ignore[assignment]
    host.cuts = [MB]
    assert get(host, part) == CONTENT
    assert host.ranges == ["", f"bytes={MB}-"]


def test_what_an_earlier_run_left_is_gone_on_with(host: StandIn, part: Path) -> None:
    part.write_bytes(CONTENT[:70_000])
    told: list[int] = []
    download(remote(host), part, size=len(CONTENT), progress=lambda done, total: told.append(done))
    assert part.read_bytes() == CONTENT
    assert host.ranges == ["bytes=70000-"]
    assert told[0] == 70_000


def test_what_is_all_there_is_not_asked_for(host: StandIn, part: Path) -> None:
    part.write_bytes(CONTENT)
    assert get(host, part) == CONTENT
    assert host.asked == []
    assert get(host, part, size=None) == CONTENT, "416"
    assert host.ranges == [f"bytes={len(CONTENT)}-"]


def test_what_is_longer_than_the_file_is_not_gone_on_with(host: StandIn, part: Path) -> None:
    part.write_bytes(b"x" * (len(CONTENT) + 1))
    assert get(host, part) == CONTENT
    assert host.ranges == [""]


def test_a_host_without_ranges_starts_again(host: StandIn, part: Path) -> None:
    host.serves_ranges = False
    part.write_bytes(b"x" * 5000)
    assert get(host, part) == CONTENT
    assert host.ranges == ["bytes=5000-"]


def test_another_range_than_was_asked_for_is_not_appended(host: StandIn, part: Path) -> None:
    host.range_shift = 10
    part.write_bytes(CONTENT[:5000])
    assert get(host, part) == CONTENT
    assert host.ranges == ["bytes=5000-", ""]


def test_a_host_that_gives_nothing_more_is_given_up(host: StandIn, part: Path) -> None:
    host.cuts = [MB] + [0] * 10
    with pytest.raises(Unreachable, match="the download from the host broke off"):
        get(host, part)
    assert host.ranges == [""] + [f"bytes={MB}-"] * transfer.FRUITLESS
    assert part.read_bytes() == CONTENT[:MB], "for the next run"


def test_starting_again_for_ever_is_given_up_too(host: StandIn, part: Path) -> None:
    """Each attempt gets a little, and more than the one before it now and then, but never more than the best."""
    host.serves_ranges = False
    host.cuts = [500, 600] * 20
    with pytest.raises(Unreachable, match="broke off"):
        get(host, part)
    assert len(host.gets) == 2 + transfer.FRUITLESS


def test_a_host_that_says_nothing_any_more_is_asked_again(
    host: StandIn, part: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "STALL_SECONDS", 0.3)
    host.pause_after = MB
    assert get(host, part) == CONTENT
    assert host.ranges == ["", f"bytes={MB}-"]


def test_a_host_that_is_busy_for_a_moment_is_asked_again(host: StandIn, part: Path) -> None:
    host.statuses = [503, 429]
    assert get(host, part) == CONTENT
    assert len(host.gets) == 3
    host.statuses = [500] * transfer.FRUITLESS
    part.unlink()
    with pytest.raises(Unreachable, match="the host answers 500"):
        get(host, part)


@pytest.mark.parametrize(("status", "says"), [(404, "answers 404$"), (401, "answers 401: log in"), (403, "log in")])
def test_a_host_that_refuses_is_asked_once(host: StandIn, part: Path, status: int, says: str) -> None:
    host.statuses = [status]
    with pytest.raises(Unreachable, match=says):
        download(remote(host, refused="log in"), part, size=None, progress=lambda done, total: None)
    assert len(host.gets) == 1
    assert not part.exists()


@pytest.mark.parametrize("length", ["told", "chunked"])
def test_a_reply_that_is_too_long_is_stopped(host: StandIn, part: Path, length: str) -> None:
    host.length = length  # type: ignore[assignment]
    with pytest.raises(TooLong, match=f"{2 * MB}.* at most"):
        get(host, part, size=2 * MB)
    assert not part.exists() if length == "told" else MB < part.stat().st_size <= 2 * MB
    assert len(host.gets) == 1, "and not asked for again"


@pytest.mark.parametrize("length", ["told", "chunked", "closed"])
def test_without_a_size_there_is_a_cap(host: StandIn, part: Path, length: str, monkeypatch: pytest.MonkeyPatch) -> None:
    host.length = length  # type: ignore[assignment]
    assert get(host, part, size=None) == CONTENT
    monkeypatch.setattr(transfer, "CAP", MB)
    part.unlink()
    with pytest.raises(TooLong):
        get(host, part, size=None)
    assert length == "told" or part.stat().st_size <= MB


@pytest.mark.parametrize("kind", ["link", "link to nothing", "hard link", "pipe"])
def test_what_is_not_a_file_of_ours_gives_way_and_is_not_written(
    host: StandIn, part: Path, tmp_path: Path, kind: str
) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(CONTENT[:5])
    if kind.startswith("link"):
        part.symlink_to(precious if kind == "link" else tmp_path / "absent")
    elif kind == "hard link":
        part.hardlink_to(precious)
    else:
        os.mkfifo(part)
    assert get(host, part) == CONTENT
    assert host.ranges == [""], "nor gone on with"
    assert precious.read_bytes() == CONTENT[:5]
    assert not (tmp_path / "absent").exists()
    assert not part.is_symlink()


def test_others_may_not_write_to_it_whatever_the_umask(host: StandIn, part: Path) -> None:
    before = os.umask(0)
    try:
        get(host, part)
    finally:
        os.umask(before)
    assert part.stat().st_mode & 0o777 == 0o644


def test_pieces_that_are_shorter_than_asked_for_are_gone_on_with(host: StandIn, part: Path) -> None:
    host.most = MB
    for size in (len(CONTENT), None):
        part.write_bytes(CONTENT[:1000])
        host.asked.clear()
        assert get(host, part, size=size) == CONTENT
        assert host.ranges == [f"bytes={1000 + n * MB}-" for n in range(4)]


def test_drops_are_not_asked_for_without_a_pause_nor_for_ever(
    host: StandIn, part: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused: list[float] = []
    monkeypatch.setattr(transfer, "PAUSE", 1.0)
    monkeypatch.setattr(transfer.time, "sleep", paused.append)
    host.most = 1
    part.write_bytes(CONTENT[:1000])
    with pytest.raises(Unreachable, match="broke off"):
        get(host, part)
    assert len(host.gets) == transfer.POOR
    assert paused == [1.0] * (transfer.POOR - 1)
    assert part.read_bytes() == CONTENT[: 1000 + transfer.POOR], "for the next run"


def test_a_stream_that_becomes_drops_is_broken_off(host: StandIn, part: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "SLOW_SECONDS", -1.0)  # every piece is late
    monkeypatch.setattr(transfer, "LEAST", len(CONTENT))
    with pytest.raises(Unreachable, match="broke off") as caught:
        get(host, part)
    assert "_Slow" in caught.value.details
    assert len(host.gets) == transfer.FRUITLESS


@pytest.mark.parametrize("length", ["told", "chunked", "closed"])
def test_a_page_in_place_of_the_file_costs_nothing_that_came(host: StandIn, part: Path, length: str) -> None:
    """A portal that wants a log-in answers everything with 200."""
    host.length = length  # type: ignore[assignment]
    host.serves_ranges = False
    host.files[PATH] = b"<html>Welcome to our free WiFi</html>"
    part.write_bytes(CONTENT[:250_000])
    with pytest.raises(Unreachable, match="gives 37 bytes" if length == "told" else "broke off"):
        get(host, part)
    assert part.read_bytes() == CONTENT[:250_000]
    assert os.listdir(part.parent) == ["part"]
    host.files[PATH], host.length = CONTENT, length  # type: ignore[assignment]
    assert get(host, part) == CONTENT, "and it starts again where ranges are not served"


@pytest.mark.parametrize("drops", [b"X-Drop: 1\r\n", b"HTTP/1.1 103 Early Hints\r\n\r\n"])
def test_headers_that_come_in_drops_end_the_question_in_time(
    host: StandIn, part: Path, drops: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "LEARN_SECONDS", 0.5)
    monkeypatch.setattr(transfer, "ANSWER_SECONDS", 0.5)
    host.drops = drops
    with pytest.raises(Unreachable, match="the host does not answer in time"):
        learn_size(remote(host))
    with pytest.raises(Unreachable, match="the host does not answer in time"):
        get(host, part)
    assert len(host.asked) == 2


def test_the_body_of_a_redirect_is_not_read(host: StandIn, part: Path) -> None:
    """It may be without an end, or packed a million to one."""
    host.redirects = {"/old": PATH}
    host.says = {"Content-Encoding": "gzip", "Content-Length": str(10**12)}
    with pytest.raises(TooLong):  # of the file itself, which says so too
        get(host, part, path="/old")
    assert [asked.path for asked in host.gets] == ["/old", PATH]


NUMBERS = ["9" * 5000, "9" * 400, "9" * 19, "-3", "+3", "3.0", "1_0", "0x10", ""]


@pytest.mark.parametrize("said", NUMBERS)
@pytest.mark.parametrize("header", ["X-Linked-Size", "Content-Length"])
def test_a_number_that_is_none_tells_no_size(host: StandIn, header: str, said: str) -> None:
    host.says = {header: said}
    try:
        assert learn_size(remote(host, HUB_PATH if header == "X-Linked-Size" else PATH)) in (None, len(CONTENT))
    except Unreachable:  # a length that HTTP itself does not allow
        assert header == "Content-Length"


@pytest.mark.parametrize("said", ["3", "٣", "３", "²"])
def test_digits_are_those_of_http(said: str) -> None:
    assert number(said) == (3 if said == "3" else None)


@pytest.mark.parametrize("said", NUMBERS)
def test_a_range_that_is_none_is_not_believed(host: StandIn, part: Path, said: str) -> None:
    host.says = {"Content-Range": f"bytes {said}-9/10"}
    part.write_bytes(CONTENT[:1000])
    assert get(host, part) == CONTENT


ENVIRONMENTS = {
    "another kind of proxy": {"HTTP_PROXY": "foo://user:secret@x", "NO_PROXY": ""},
    "no proxy": {"ALL_PROXY": "http://[secret", "NO_PROXY": ""},
    "a port": {"HTTP_PROXY": "http://user:secret@x:99999999", "NO_PROXY": ""},
    "certificates": {"SSL_CERT_FILE": "/absent/secret"},
    "a folder": {"SSL_CERT_FILE": "/"},
}


@pytest.mark.parametrize("settings", ENVIRONMENTS.values(), ids=ENVIRONMENTS.keys())
def test_an_environment_that_cannot_be_used_is_told_by_names_alone(
    host: StandIn, part: Path, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    failures: list[Unreachable] = []
    for ask in (lambda: learn_size(remote(host)), lambda: get(host, part)):
        try:
            ask()  # what one release of httpx refuses another may take
        except Unreachable as failure:
            failures.append(failure)
    for failure in failures:
        assert re.search(rf"the host cannot be reached.*\(.*{next(iter(settings))}", failure.message)
        assert "secret" not in failure.message + failure.details


@pytest.mark.parametrize(
    "address",
    [
        "http://a..b/",
        f"http://{'a' * 64}/",
        f"http://{'a' * 300}/",
        "http://[x",
        "file:///etc/passwd",
        "http://x:99999",
    ],
)
@pytest.mark.parametrize("redirected", [False, True])
def test_an_address_that_is_none_is_one_line(host: StandIn, part: Path, address: str, redirected: bool) -> None:
    host.redirects = {PATH: address}
    asked = remote(host) if redirected else Remote("the host", address)
    for ask in (
        lambda: learn_size(asked),
        lambda: download(asked, part, size=None, progress=lambda done, total: None),
    ):
        with pytest.raises(Unreachable, match=r"^(the host cannot be reached|the download from the host broke off)$"):
            ask()


def test_the_size_is_learnt_from_a_head(host: StandIn) -> None:
    assert learn_size(remote(host)) == len(CONTENT)
    assert [(asked.method, asked.encoding) for asked in host.asked] == [("HEAD", "identity")]
    host.linked_size = 12345
    assert learn_size(remote(host, HUB_PATH)) == 12345, "the hub's own word counts more than a length"
    host.length = "chunked"
    assert learn_size(remote(host)) is None, "packed on demand"


def test_a_host_that_knows_no_head_has_the_file_all_the_same(host: StandIn, part: Path) -> None:
    for status in (405, 501, 503, 429):
        host.head_status = status
        assert learn_size(remote(host)) is None
    assert get(host, part, size=None) == CONTENT


def test_a_head_that_is_refused_is_an_answer(host: StandIn) -> None:
    host.head_status = 403
    with pytest.raises(Unreachable, match="the host answers 403: log in"):
        learn_size(remote(host, refused="log in"))
    host.head_status = 0
    with pytest.raises(Unreachable, match=r"the host answers 404$"):
        learn_size(remote(host, "/absent"))


@pytest.mark.parametrize("address", ["http://127.0.0.1:{closed}/a", "http://[", "nowhere", "http://"])
def test_a_host_that_is_not_there(host: StandIn, address: str) -> None:
    with socket.socket() as bound:  # and not listening
        bound.bind(("127.0.0.1", 0))
        with pytest.raises(Unreachable, match="the host cannot be reached"):
            learn_size(Remote("the host", address.format(closed=bound.getsockname()[1])))


def test_a_host_that_goes_away_before_the_download(host: StandIn, part: Path) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        gone = Remote("the host", f"http://127.0.0.1:{bound.getsockname()[1]}/a")
        with pytest.raises(Unreachable, match="the host cannot be reached"):
            download(gone, part, size=None, progress=lambda done, total: None)


@pytest.mark.parametrize("around", ["fe80::/10", "fd00::/8,localhost", "[::1]", ".corp,10.0.0.0/8"])
def test_a_proxy_is_used_whatever_else_is_reached_without_it(
    host: StandIn, part: Path, around: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """httpx itself would stop at some of these, with or without a proxy."""
    monkeypatch.setenv("NO_PROXY", f"127.0.0.1,{around}")
    assert get(host, part) == CONTENT
    monkeypatch.setenv("HTTP_PROXY", host.address)
    monkeypatch.setenv("NO_PROXY", around)
    host.files["http://files.test/a"] = CONTENT
    part.unlink()
    far = Remote("the host", "http://files.test/a")
    assert learn_size(far) == len(CONTENT)
    download(far, part, size=None, progress=lambda done, total: None)
    assert part.read_bytes() == CONTENT
    assert host.asked[-1].path == "http://files.test/a", "asked as a proxy is"


def test_a_proxy_that_cannot_be_used(host: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "gopher://user:secret@proxy.test")
    monkeypatch.setenv("NO_PROXY", "")
    with pytest.raises(Unreachable, match="with the proxy") as caught:
        learn_size(remote(host))
    assert "secret" not in caught.value.message + caught.value.details


@pytest.fixture
def store(host: StandIn) -> Iterator[StandIn]:
    """Another host, that the first one redirects to."""
    with stand_in({"/store/a.bin": CONTENT}) as state:
        host.redirects = {PATH: state.url("/store/a.bin"), HUB_PATH: state.url("/store/a.bin")}
        yield state


TOKEN = {"Authorization": "Bearer hf_secret"}


def test_the_token_stays_with_the_host_it_is_for(host: StandIn, store: StandIn, part: Path) -> None:
    part.write_bytes(CONTENT[:MB])
    assert learn_size(remote(host, headers=TOKEN)) == len(CONTENT)
    download(remote(host, headers=TOKEN), part, size=None, progress=lambda done, total: None)
    assert part.read_bytes() == CONTENT
    assert {asked.authorization for asked in host.asked} == {"Bearer hf_secret"}
    assert [(asked.method, asked.range, asked.authorization) for asked in store.asked] == [
        ("HEAD", "", ""),
        ("GET", f"bytes={MB}-", ""),
    ]
    assert "secret" not in repr(remote(host, headers=TOKEN))


def test_a_redirect_on_the_same_host_keeps_the_token(host: StandIn) -> None:
    host.redirects = {"/old": PATH}
    assert learn_size(remote(host, "/old", headers=TOKEN)) == len(CONTENT)
    assert [asked.authorization for asked in host.asked] == ["Bearer hf_secret"] * 2


def test_where_the_first_host_knows_the_size_the_second_is_not_asked(host: StandIn, store: StandIn) -> None:
    """Its address may be signed for a GET alone."""
    store.head_status = 403
    assert learn_size(remote(host, HUB_PATH)) == len(CONTENT)
    assert store.asked == []
    assert learn_size(remote(host)) is None, "and where it does not, a refusal there is none of the file"


def test_a_circle_of_redirects_ends(host: StandIn, part: Path) -> None:
    host.redirects = {PATH: host.url(PATH)}
    assert learn_size(remote(host)) is None
    with pytest.raises(Unreachable, match="broke off"):
        get(host, part)
