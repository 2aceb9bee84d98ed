"""What README tells people to run, run as it stands against the service (with its address put in)."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from servers import ROOT, api_server

BLOCK = re.compile(r"^```(bash|python) run\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DOCUMENTS = ("README.md", "README.ja.md")


def blocks() -> list[tuple[str, str, str]]:
    found = []
    for name in DOCUMENTS:
        for language, code in BLOCK.findall((ROOT / name).read_text(encoding="utf-8")):
            found.append((name, language, code))
    return found


@pytest.fixture(scope="module")
def url(tiny_server: str, tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    with api_server(tiny_server, tmp_path_factory.mktemp("documents"), key="local-dev") as (url, _):
        yield url


@pytest.mark.parametrize(("document", "language", "code"), blocks())
def test_a_block_runs(url: str, document: str, language: str, code: str) -> None:
    code = code.replace("http://127.0.0.1:8080", url)
    if "systemone_client.py explain" in code:
        code = code.replace("explain ", f"explain --url {url} ", 1)
    elif "systemone_client.py" in code:
        code = code.replace("systemone_client.py", f"systemone_client.py --url {url}", 1)
    code = re.sub(r"^python3 ", f"{sys.executable} ", code)
    command = ["bash", "-euc", code] if language == "bash" else [sys.executable, "-c", code]
    environment = {name: value for name, value in os.environ.items() if name != "JEV_API_KEY"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False, env=environment)
    assert done.returncode == 0, f"{document}: {done.stderr}"
    if "curl" in code and "/v1/systemone" in code:
        assert "HTTP/1.1 200" in done.stdout
        assert "x-jev-local-processed-tokens" in done.stdout.lower()


def test_both_readmes_run_the_same_things() -> None:
    kinds = {name: [language for n, language, _ in blocks() if n == name] for name in DOCUMENTS}
    assert kinds["README.md"] == kinds["README.ja.md"] == ["bash", "bash", "python", "bash", "bash", "python", "bash"]


def test_relative_links_lead_somewhere() -> None:
    for document in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("**/*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text(encoding="utf-8")):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"
