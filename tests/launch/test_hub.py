"""Where the hub's own client says that a file is, and with which credentials."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from jev_local.launch import hub, transfer
from jev_local.launch.pins import HubSource
from jev_local.launch.remote import Unreachable
from standins import StandIn, hub_path, stand_in

CONTENT = bytes(range(256)) * 4096
REVISION = "0123456789abcdef0123456789abcdef01234567"
SOURCE = HubSource("owner/repository", REVISION, "model.gguf")
TEMPLATE = "/{repo_id}/resolve/{revision}/{filename}"


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    monkeypatch.setattr(transfer, "PAUSE", 0.0)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("HF_TOKEN", "")
    with stand_in({hub_path(SOURCE.repository, REVISION, SOURCE.file): CONTENT}) as state:
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", state.address + TEMPLATE)
        yield state


def get(part: Path) -> bytes:
    transfer.download(hub.remote(SOURCE), part, size=None, progress=lambda done, total: None)
    return part.read_bytes()


def test_the_file_comes_from_the_pinned_revision(host: StandIn, tmp_path: Path) -> None:
    assert transfer.learn_size(hub.remote(SOURCE)) == len(CONTENT)
    assert get(tmp_path / "part") == CONTENT
    assert {asked.path for asked in host.asked} == {f"/owner/repository/resolve/{REVISION}/model.gguf"}


def test_the_token_of_the_environment_is_sent_unless_it_is_switched_off(
    host: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    get(tmp_path / "a")
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_IMPLICIT_TOKEN", True)
    get(tmp_path / "b")
    assert [asked.authorization for asked in host.gets] == ["Bearer hf_secret", ""]


def test_a_token_that_cannot_be_one_is_not_shown(host: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_sécret")
    with pytest.raises(Unreachable, match="correct HF_TOKEN") as caught:
        hub.remote(SOURCE)
    assert "cret" not in caught.value.message + caught.value.details
    assert host.asked == []


@pytest.mark.parametrize("status", [401, 403])
def test_a_model_behind_a_log_in_says_so(host: StandIn, status: int) -> None:
    host.head_status = status
    with pytest.raises(
        Unreachable, match=rf"Hugging Face answers {status}: owner/repository wants a log-in .*licence .*HF_TOKEN"
    ):
        transfer.learn_size(hub.remote(SOURCE))


def test_the_hub_can_be_switched_off(host: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(Unreachable, match="HF_HUB_OFFLINE"):
        hub.remote(SOURCE)
    assert host.asked == []


ASK = """
import sys
from jev_local.launch import hub
from jev_local.launch.pins import HubSource
from jev_local.launch.remote import Unreachable
try:
    asked = hub.remote(HubSource("owner/repository", "0" * 40, "model.gguf"))
except Unreachable as failure:
    sys.exit(f"{failure.message}|{failure.details}")
print(asked.url)
"""


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HF_HUB_ETAG_TIMEOUT", "abc"),
        ("HF_HUB_DOWNLOAD_TIMEOUT", "abc"),
        ("HF_ENDPOINT", "http://[secret"),
        ("HF_TOKEN_PATH", "{folder}/binary"),
        ("HF_TOKEN_PATH", "{folder}"),
    ],
)
def test_settings_that_the_hub_cannot_be_loaded_with_are_named_and_not_shown(
    tmp_path: Path, name: str, value: str
) -> None:
    (tmp_path / "binary").write_bytes(b"secret\xff\xfe")
    environment = {key: told for key, told in os.environ.items() if not key.startswith("HF_")}
    environment[name] = value.format(folder=tmp_path)
    found = subprocess.run([sys.executable, "-c", ASK], env=environment, capture_output=True, text=True, check=False)
    assert found.returncode == 1, found.stdout
    assert found.stderr.startswith(f"Hugging Face cannot be reached with what is set for it ({name}")
    assert "secret" not in found.stderr
    assert found.stderr.count("\n") == 1
