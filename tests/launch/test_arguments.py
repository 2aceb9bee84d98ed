import os
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from jev_local import __main__ as program
from jev_local.called import SCRIPTS
from jev_local.launch.arguments import api_settings, parser, size_text
from jev_local.launch.inference import InferenceServer
from jev_local.launch.ports import BACKEND_PORT
from jev_local.launch.up import Wishes, url
from jev_local.settings import DEFAULT_BACKEND_URL, ApiSettings
from programs import free_port, two_free_ports

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("key", ["schlüssel", "two words", " edge", "\udcff", "line\n"])
def test_a_key_that_no_header_can_carry_is_refused_at_start(
    key: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JEV_API_KEY", key)
    assert program.main(["serve"]) == 2
    said = capsys.readouterr().err
    assert "JEV_API_KEY has to be printable ASCII without spaces" in said
    assert key not in said


def test_the_api_gets_what_follows_the_dashes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = tmp_path / "m.gguf"
    model.write_bytes(b"GGUF")
    seen: list[tuple[InferenceServer, Wishes]] = []

    def run(server: InferenceServer, wishes: Wishes, *, demo: object) -> int:
        seen.append((server, wishes))
        return 0

    monkeypatch.setattr("jev_local.launch.up.run", run)
    monkeypatch.setenv("JEV_HOME", str(tmp_path))
    api, backend = two_free_ports()
    words = ["up", "--port", str(api), "--backend-port", str(backend), "--model", str(model), "--no-demo"]
    assert program.main([*words, "--", "--workers", "2", "--details"]) == 0
    ((server, wishes),) = seen
    assert server.options.port == backend
    assert (wishes.api.port, wishes.api.workers, wishes.api.details) == (api, 2, True)
    assert wishes.api.backend_url == f"http://127.0.0.1:{backend}"
    assert (wishes.once, wishes.demo) == (False, False)
    assert wishes.api_arguments[-3:] == ("--workers", "2", "--details")
    assert server.options.slot_dir == str(tmp_path / "cache" / "slots")
    assert wishes.api.slot_cache_dir == Path(server.options.slot_dir), "both look in the same place"

    monkeypatch.setenv("SLOT_CACHE_DIR", str(tmp_path / "mine"))
    assert program.main(words) == 0
    server, wishes = seen[-1]
    assert server.options.slot_dir == str(tmp_path / "mine")
    assert wishes.api.slot_cache_dir == tmp_path / "mine"
    assert wishes.api_arguments[-2:] == ("--slot-cache-dir", str(tmp_path / "mine"))

    assert program.main([*words, "--", "--slot-cache-dir", str(tmp_path / "theirs"), "--state-cache", "off"]) == 0
    server, wishes = seen[-1]
    assert server.options.slot_dir == str(tmp_path / "mine")
    assert (wishes.api.slot_cache_dir, wishes.api.state_cache) == (tmp_path / "theirs", "off")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["up", "--port", "0"], "1 to 65535"),
        (["up", "--port", "70000"], "1 to 65535"),
        (["up", "--model", "gpt"], "starter, smollm2"),
        (["up", "--model", "/no/such/file.gguf"], "No such file"),
        (["up", "--port", "9000", "--backend-port", "9000"], "cannot both"),
        (["up", "--", "--wrokers", "3"], "--wrokers"),
        (["up", "--", "--detail"], "--detail"),
        (["up", "--", "--backend-url", "http://10.0.0.5:8097"], "./run_api_server.sh"),
        (["up", "--on"], "--on"),
        (["serve", "--", "--details"], "only `./run.sh`"),
        (["serve", "--workers", "0"], "--workers has to be at least 1"),
        (["serve", "--workers", "many"], "--workers"),
        (["serve", "--backend-timeout", "-1"], "--backend-timeout has to be a positive number"),
        (["serve", "--backend-timeout", "nan"], "--backend-timeout has to be a positive number"),
        (["serve", "--backend-timeout", "inf"], "--backend-timeout has to be a positive number"),
        (["serve", "--backend-url", "localhost:8097"], "--backend-url has to look like http://127.0.0.1:8097, got 'lo"),
        (["serve", "--backend-url", "my_box:8097"], "got 'my_box:8097'"),
        (["serve", "--backend-url", "http://box:80970"], "Port out of range"),
        (["serve", "--backend-url", "http://box:http"], "--backend-url has to look like"),
        (["serve", "--backend-url", "http://[::1"], "--backend-url has to look like"),
        (["serve", "--backend-url", "http://a b"], "--backend-url has to look like"),
        (["serve", "--backend-url", "http://box?x=1"], "--backend-url has to look like"),
        (["serve", "--backend-url", "http://127.1:8097"], "without leading zeros, got 'http://127.1:8097'"),
        (["serve", "--state-cache", "on"], "--state-cache"),
        (["serve", "--cache-min-tokens", "0"], "--cache-min-tokens has to be at least 1, got 0"),
        (["serve", "--prefill-chunk", "31"], "--prefill-chunk has to be at least 32, got 31"),
        (["serve", "--prefix-cache-bytes", "1T"], "a size is a number of bytes such as 0, 512M or 2G, not '1T'"),
        (["serve", "--prefix-cache-bytes", "-1"], "--prefix-cache-bytes: a size is a number"),
        (["serve", "--prefix-cache-bytes", "1.5G"], "--prefix-cache-bytes: a size is a number"),
        (["serve", "--prefix-cache-bytes", ""], "--prefix-cache-bytes: a size is a number"),
        (["serve", "--prefix-cache-bytes", "9" * 5000], "--prefix-cache-bytes: a size is a number"),
        (
            ["serve", "--slot-cache-dir", "~no-such-user/slots"],
            "--slot-cache-dir ~no-such-user/slots: this user has no",
        ),
        (["serve", "--stable", "--state-cache", "off"], "--stable cannot go with --state-cache off: leave one of"),
        (["up", "--", "--stable", "--state-cache", "off"], "--stable cannot go with --state-cache off"),
        (["up", "--", "--backend-timeout", "nan"], "--backend-timeout has to be a positive number"),
        (["dance"], "dance"),
        ([], "COMMAND"),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_2(
    words: list[str],
    complaint: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("JEV_HOME", str(tmp_path))
    try:
        code = program.main(words)
    except SystemExit as stop:
        code = int(stop.code or 0)
    assert code == 2
    *before, line = capsys.readouterr().err.splitlines()
    assert complaint in line
    assert not before or before[0].startswith("usage: "), "argparse shows its usage first; we say one line"


def settings_of(*words: str, **environment: str) -> ApiSettings:
    return api_settings(parser().parse_args(["serve", *words]), environment)


def test_reuse_by_default(tmp_path: Path) -> None:
    chosen = settings_of(JEV_HOME=str(tmp_path / "here"))
    assert (chosen.state_cache, chosen.cache_min_tokens, chosen.prefill_chunk) == ("auto", 256, 512)
    assert (chosen.prefix_cache_bytes, chosen.stable) == (1024**3, False)
    assert chosen.slot_cache_dir == tmp_path / "here" / "cache" / "slots"
    assert list(tmp_path.iterdir()) == [], "the folder is made by what saves in it"


def test_reuse_as_it_is_wished_for() -> None:
    words = ["--state-cache", "shared", "--cache-min-tokens", "64", "--prefix-cache-bytes", "512M", "--stable"]
    chosen = settings_of(*words, "--prefill-chunk", "32", "--slot-cache-dir", "/ram/slots")
    assert (chosen.state_cache, chosen.cache_min_tokens, chosen.prefill_chunk) == ("shared", 64, 32)
    assert (chosen.prefix_cache_bytes, chosen.stable) == (512 * 1024**2, True)
    assert chosen.slot_cache_dir == Path("/ram/slots")
    assert settings_of("--state-cache", "off").state_cache == "off"


def test_the_slots_are_where_the_inference_server_of_this_machine_has_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert settings_of(SLOT_CACHE_DIR="/s").slot_cache_dir == Path("/s")
    assert settings_of(SLOT_CACHE_DIR="~/s").slot_cache_dir == tmp_path / "s"
    assert settings_of("--slot-cache-dir", "~/t", SLOT_CACHE_DIR="/s").slot_cache_dir == tmp_path / "t"
    assert settings_of("--slot-cache-dir", "t", SLOT_CACHE_DIR="/s").slot_cache_dir == tmp_path / "t"
    assert settings_of("--slot-cache-dir", "", SLOT_CACHE_DIR="/s").slot_cache_dir == Path("/s")


@pytest.mark.parametrize(
    ("text", "size", "shown"),
    [
        ("0", 0, "0"),
        ("1000", 1000, "1000"),
        ("64K", 65536, "64K"),
        ("512m", 536870912, "512M"),
        ("1G", 1073741824, "1G"),
        ("1536M", 1610612736, "1536M"),
        ("1073741824", 1073741824, "1G"),
    ],
)
def test_sizes_are_read_and_shown_alike(text: str, size: int, shown: str) -> None:
    assert settings_of("--prefix-cache-bytes", text).prefix_cache_bytes == size
    assert size_text(size) == shown
    assert settings_of("--prefix-cache-bytes", shown).prefix_cache_bytes == size


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"cache_min_tokens": 0}, "cache_min_tokens has to be at least 1, got 0"),
        ({"prefix_cache_bytes": -1}, "prefix_cache_bytes has to be at least 0, got -1"),
        ({"prefill_chunk": 31}, "prefill_chunk has to be at least 32, got 31"),
        ({"stable": True, "state_cache": "off"}, "stable cannot go with --state-cache off"),
    ],
)
def test_settings_begin_their_complaint_with_the_field(wrong: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=f"^{complaint}"):
        ApiSettings(**wrong)
    ApiSettings(cache_min_tokens=1, prefix_cache_bytes=0, prefill_chunk=32, stable=True, state_cache="shared")


@pytest.mark.parametrize(
    "host",
    [
        "127.1",
        "0",
        "0x7f000001",
        "0X7F.1",
        "2130706433",
        "127.000.000.001",
        "0177.0.0.1",
        "127.1.",
        "256.0.0.1",
        "1.2.3.4.5",
        "１２７.1",
        "127。0。0。1",
    ],
)
def test_an_address_that_only_some_resolvers_understand_is_refused(host: str) -> None:
    with pytest.raises(ValueError, match=r"^backend_url has to look like http://127\.0\.0\.1:8097, .* got 'http://"):
        ApiSettings(backend_url=f"http://{host}:8097")


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "localhost",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "10.0.0.5",
        "0.0.0.0",
        "host1",
        "1.example.com",
        "0x7f.example",
        "1-2",
        "0xyz",
    ],
)
def test_addresses_and_names_are_taken(host: str) -> None:
    for end in ("", ":8097", "/"):
        ApiSettings(backend_url=f"http://{host}{end}")


def test_a_password_in_a_url_is_refused_and_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    for address in ("http://user:hunter2@box:8097", "user:hunter2@box", "http://user:hunter2@box:80970"):
        assert program.main(["serve", "--backend-url", address]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "without a user name and a password" in line
        assert "hunter2" not in line


def test_the_api_looks_where_the_inference_server_listens() -> None:
    assert f"http://127.0.0.1:{BACKEND_PORT}" == DEFAULT_BACKEND_URL
    assert parser().parse_args(["backend"]).port == BACKEND_PORT
    assert parser().parse_args(["up"]).backend_port == BACKEND_PORT
    assert parser().parse_args(["serve"]).backend_url == DEFAULT_BACKEND_URL


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ("CTX_SIZE=8k", "CTX_SIZE has to be a whole number"),
        ("LLAMA_SERVER=/no/such/binary", "LLAMA_SERVER=/no/such/binary is not a program"),
        ("GPU_DEVICE=CUDA0", "GPU_DEVICE needs a native build"),
        ("MMPROJ=/no/such/projector", "projector"),
        ("MODEL=gpt", "no model is named"),
    ],
)
def test_a_bad_variable_is_one_line_and_exit_code_2(
    setting: str,
    complaint: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("JEV_HOME", str(tmp_path))
    monkeypatch.setenv(*setting.split("="))
    assert program.main(["backend", "--port", str(free_port())]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert complaint in line


@pytest.mark.parametrize(
    ("environment", "key", "shown"),
    [
        ({}, "local-dev", "key: default local-dev"),
        ({"JEV_API_KEY": "hunter2"}, "hunter2", "key: from JEV_API_KEY"),
        ({"JEV_API_KEY": ""}, "", "key: none, anybody who can reach the port may ask"),
    ],
)
def test_what_is_in_force_never_shows_a_key_of_the_user(environment: dict[str, str], key: str, shown: str) -> None:
    text = program.in_force(ApiSettings(key=key), environment)
    assert shown in text
    assert "hunter2" not in text


def test_what_is_in_force_tells_of_reuse(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jev_local.serve.run", lambda settings: 0)
    words = ["--slot-cache-dir", "/ram/jev\udcff", "--prefix-cache-bytes", "512M", "--stable"]
    assert program.main(["serve", *words, "--cache-min-tokens", "64"]) == 0
    assert capsys.readouterr().out.splitlines()[-8:] == [
        "  --state-cache         auto",
        "  --cache-min-tokens    64",
        "  --image-prefix        auto",
        "  --max-image-pixels    20000000",
        "  --slot-cache-dir      /ram/jev\\udcff",
        "  --prefix-cache-bytes  512M",
        "  --prefill-chunk       512",
        "  --stable              on",
    ]


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", "http://127.0.0.1:8080"),
        ("0.0.0.0", "http://127.0.0.1:8080"),
        ("::", "http://[::1]:8080"),
        ("::1", "http://[::1]:8080"),
        ("box.local", "http://box.local:8080"),
    ],
)
def test_where_this_machine_reaches_the_api(host: str, expected: str) -> None:
    assert url(ApiSettings(host=host)) == expected


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["up", "--details"], "--details; options of the API go behind --: ./run.sh -- --details"),
        (["up", "extra"], "unrecognized arguments: extra\n"),
        (["setup", "--details"], "unrecognized arguments: --details\n"),
    ],
)
def test_what_is_not_known_is_told_by_the_command_that_was_called(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        program.main(words)
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(f"usage: {SCRIPTS[words[0]]} ")
    assert says in said


@pytest.mark.parametrize("installed", [True, False])
@pytest.mark.parametrize(("command", "script"), SCRIPTS.items())
def test_help_teaches_with_examples_as_they_are_typed_here(
    command: str, script: str, installed: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if installed:
        monkeypatch.setattr("jev_local.called.checkout", lambda: None)
    with pytest.raises(SystemExit):
        parser().parse_args([command, "--help"])
    said = capsys.readouterr().out
    name = f"jev-local {command}" if installed else script
    assert said.startswith(f"usage: {name} ")
    assert f"\n  {name}" in said.partition("examples:")[2]
    assert ("./" in said.partition("examples:")[2].replace("./mine.gguf", "")) is not installed


def test_help_knows_every_setting_of_reuse(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(["serve", "--help"])
    options, _, examples = capsys.readouterr().out.partition("examples:")
    for word in (
        "--state-cache {auto,shared,off}",
        "--cache-min-tokens N",
        "--slot-cache-dir PATH",
        "--prefix-cache-bytes N",
        "(1G)",
        "--prefill-chunk N",
        "--stable",
    ):
        assert word in options
    for line in (
        "./run_api_server.sh --state-cache off",
        "./run_api_server.sh --prefix-cache-bytes 0",
        "SLOT_CACHE_DIR=/dev/shm/jev-slots ./run_server.sh",
        "./run_api_server.sh --slot-cache-dir /dev/shm/jev-slots",
    ):
        assert line in examples


def test_without_a_server_the_remedy_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JEV_HOME", str(tmp_path))
    monkeypatch.delenv("LLAMA_SERVER", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert program.main(["backend", "--port", str(free_port())]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    (wheel,) = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["local"]
    assert f"(pip install {wheel})" in line, "the version that pyproject.toml pins"
    assert "LLAMA_SERVER" in line

    def absent(name: str) -> list[str]:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", absent)
    assert program.main(["backend", "--port", str(free_port())]) == 1
    assert "(pip install xllamacpp)" in capsys.readouterr().err


def test_a_reader_that_leaves_ends_it_quietly() -> None:
    """`./run.sh | head`"""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing) as output:
        done = subprocess.run(
            [sys.executable, "-m", "jev_local", "serve", "--port", str(free_port())],
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
            timeout=30,
            check=False,
        )
    assert (done.returncode, done.stderr) == (141, "")
