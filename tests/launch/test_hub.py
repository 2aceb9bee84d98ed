"""Where the hub's own client says that a file is, and with which credentials."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from jev_local.launch import hub, transfer
from jev_local.launch.pins import HubSource
from jev_local.launch.transfer import Unreachable
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
