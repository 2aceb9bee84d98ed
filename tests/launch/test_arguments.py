from pathlib import Path

import pytest

from jev_local import __main__ as program
from jev_local.launch.arguments import parser
from jev_local.launch.inference import InferenceServer
from jev_local.launch.up import Wishes, url
from jev_local.settings import ApiSettings


def test_the_api_gets_what_follows_the_dashes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = tmp_path / "m.gguf"
    model.write_bytes(b"GGUF")
    seen: list[tuple[InferenceServer, Wishes]] = []

    def run(server: InferenceServer, wishes: Wishes, *, demo: object) -> int:
        seen.append((server, wishes))
        return 0

    monkeypatch.setattr("jev_local.launch.up.run", run)
    monkeypatch.setenv("JEV_HOME", str(tmp_path))
    words = ["up", "--port", "41001", "--backend-port", "41002", "--model", str(model), "--no-demo"]
    assert program.main([*words, "--", "--workers", "2", "--details"]) == 0
    ((server, wishes),) = seen
    assert server.options.port == 41002
    assert (wishes.api.port, wishes.api.workers, wishes.api.details) == (41001, 2, True)
    assert wishes.api.backend_url == "http://127.0.0.1:41002"
    assert (wishes.once, wishes.demo) == (False, False)
    assert wishes.api_arguments[-3:] == ("--workers", "2", "--details")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["up", "--port", "0"], "1 to 65535"),
        (["up", "--port", "70000"], "1 to 65535"),
        (["up", "--model", "gpt"], "starter, smollm2"),
        (["up", "--model", "/no/such/file.gguf"], "No such file"),
        (["up", "--port", "41003", "--backend-port", "41003"], "cannot both"),
        (["up", "--", "--wrokers", "3"], "--wrokers"),
        (["serve", "--", "--details"], "only `up`"),
        (["serve", "--workers", "0"], "--workers has to be at least 1"),
        (["serve", "--backend-timeout", "-1"], "--backend-timeout has to be positive"),
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
    assert complaint in capsys.readouterr().err.splitlines()[-1]


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
    assert program.main(["backend", "--port", "41004"]) == 2
    assert complaint in capsys.readouterr().err


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


@pytest.mark.parametrize("command", ["up", "serve", "backend"])
def test_help_teaches_with_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args([command, "--help"])
    assert f"jev-local {command}" in capsys.readouterr().out.partition("examples:")[2]


def test_without_a_server_the_remedy_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JEV_HOME", str(tmp_path))
    monkeypatch.delenv("LLAMA_SERVER", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert program.main(["backend", "--port", "41005"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "pip install 'jev-local[local]'" in line
    assert "LLAMA_SERVER" in line
