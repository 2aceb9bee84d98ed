"""The C++ tests of the cache, compiled plainly and under the sanitizers.

They need g++, which building needs and nothing else does: without one they are skipped.
"""

import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

NATIVE = Path(__file__).resolve().parents[2] / "native"
TESTS = ("cache_test", "threads_test", "memory_test")
MODES = {
    "plain": ["-O2"],
    "asan-ubsan": ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    "tsan": ["-O1", "-g", "-fsanitize=thread"],
}
WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Werror"]

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++ here to compile the C++ tests")


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Path]:
    """Every test in every mode, compiled two at a time."""
    folder = tmp_path_factory.mktemp("native")
    wanted = {(test, mode): folder / f"{test}-{mode}" for test in TESTS for mode in MODES}

    def compiled(what: tuple[str, str]) -> str:
        test, mode = what
        command = ["g++", "-std=c++17", *WARNINGS, *MODES[mode], str(NATIVE / "tests" / f"{test}.cpp"), "-pthread"]
        done = subprocess.run([*command, "-o", str(wanted[what])], capture_output=True, text=True, check=False)
        return "" if done.returncode == 0 else done.stderr[-4000:]

    with ThreadPoolExecutor(2) as compilers:
        complaints = [complaint for complaint in compilers.map(compiled, wanted) if complaint]
    assert not complaints, complaints[0]
    return wanted


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("test", TESTS)
def test_the_cache_keeps_its_promises(programs: dict[tuple[str, str], Path], test: str, mode: str) -> None:
    done = subprocess.run([str(programs[test, mode])], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    source = (NATIVE / "tests" / f"{test}.cpp").read_text()
    assert done.stdout.count("ok ") == source.count("    RUN(") > 0
    assert not done.stderr
