import pytest

from jev_local import __main__ as program
from jev_local.launch.exposure import warning
from jev_local.settings import ApiSettings


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "localhost"])
@pytest.mark.parametrize("key", ["local-dev", "", "hunter2"])
def test_this_machine_alone_needs_no_warning(host: str, key: str) -> None:
    assert warning(ApiSettings(host=host, key=key)) is None


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "box.local", ""])
def test_other_machines_and_no_key_of_ones_own_is_warned_about(host: str) -> None:
    for key, named in (("local-dev", "the key is local-dev, which everybody knows"), ("", "no key is needed")):
        line = warning(ApiSettings(host=host, port=8081, key=key))
        assert line is not None
        assert "\n" not in line
        assert "anybody who can reach" in line
        assert "port 8081 may ask" in line
        assert named in line
        assert line.endswith(": set JEV_API_KEY")
    assert warning(ApiSettings(host=host, key="hunter2")) is None


def test_it_is_said_at_the_start(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jev_local.serve.run", lambda settings: 0)
    monkeypatch.delenv("JEV_API_KEY", raising=False)
    assert program.main(["serve", "--host", "0.0.0.0"]) == 0
    assert capsys.readouterr().err.startswith("WARNING: anybody who can reach 0.0.0.0 port 8080 may ask")
    assert program.main(["serve"]) == 0
    assert capsys.readouterr().err == ""
