"""What a binary says of the GPUs that it sees."""

from pathlib import Path

import pytest

from jev_local.backend.devices import CannotList, Device, devices, has_gpu, with_libraries
from programs import is_alive, until

CUDA = "Available devices:\n  CUDA0: NVIDIA H200 (143771 MiB, 143000 MiB free)\n"
TWO = "Available devices:\n  ROCm0: AMD Radeon (TM) Graphics (512 MiB, 1 MiB free)\n  BLAS: OpenBLAS\n"


def binary(folder: Path, listing: str, *, ends: str = "") -> Path:
    made = folder / "llama-server"
    made.write_text(f"#!/bin/sh\ncat <<'END'\n{listing}END\necho \"$LD_LIBRARY_PATH\" >&2\n{ends}")
    made.chmod(0o755)
    return made


@pytest.mark.parametrize(
    ("listing", "found"),
    [
        (CUDA, (Device("CUDA0", "NVIDIA H200", 143771, 143000),)),
        ("ggml_cuda_init: found 1 CUDA devices\n" + CUDA, (Device("CUDA0", "NVIDIA H200", 143771, 143000),)),
        (TWO, (Device("ROCm0", "AMD Radeon (TM) Graphics", 512, 1), Device("BLAS", "OpenBLAS", None, None))),
        ("Available devices:\n", ()),
    ],
)
def test_a_listing_is_read(tmp_path: Path, listing: str, found: tuple[Device, ...]) -> None:
    made = binary(tmp_path, listing)
    assert devices(made) == found
    assert has_gpu(made) is bool(found)


@pytest.mark.parametrize(
    ("listing", "ends", "reason"),
    [
        ("error: unknown argument: --list-devices\n", "", "libs"),
        (CUDA, "exit 3\n", "libs"),
        ("", "echo 'libssl.so.3: cannot open shared object file' >&2; exit 127\n", "libssl.so.3"),
    ],
)
def test_a_binary_that_does_not_run_says_why(tmp_path: Path, listing: str, ends: str, reason: str) -> None:
    made = binary(tmp_path, listing, ends=ends)
    with pytest.raises(CannotList, match=reason):
        devices(made, {"LD_LIBRARY_PATH": "/libs", "PATH": "/usr/bin:/bin"})
    assert not has_gpu(made)


def test_what_is_no_program(tmp_path: Path) -> None:
    with pytest.raises(CannotList, match="No such file"):
        devices(tmp_path / "absent")
    (tmp_path / "data").write_bytes(b"\x7fELF nonsense")
    (tmp_path / "data").chmod(0o755)
    with pytest.raises(CannotList, match="Exec format error"):
        devices(tmp_path / "data")
    assert not has_gpu(tmp_path / "absent")


def test_one_that_hangs_ends_with_all_that_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jev_local.backend.devices.LISTING_SECONDS", 0.5)
    made = binary(tmp_path, "", ends=f"sleep 600 & echo $! > {tmp_path}/pid; wait\n")
    with pytest.raises(CannotList, match=r"does not answer within 0\.5 s"):
        devices(made)
    until(lambda: not is_alive(int((tmp_path / "pid").read_text())), "the end of what it started", seconds=5)


def test_one_that_closes_its_output_and_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jev_local.backend.devices.END_SECONDS", 0.2)
    with pytest.raises(CannotList, match="does not end"):
        devices(binary(tmp_path, CUDA, ends="exec >&- 2>&-; sleep 600\n"))


def test_one_that_talks_for_ever(tmp_path: Path) -> None:
    with pytest.raises(CannotList, match="more than 256 KiB"):
        devices(binary(tmp_path, "", ends="exec yes\n"))


def test_nothing_of_it_steers_a_terminal(tmp_path: Path) -> None:
    (found,) = devices(binary(tmp_path, f"Available devices:\n  CUDA0: A\x1b[31mB (1 MiB, {'9' * 5000} MiB free)\n"))
    assert found.about.startswith("A?[31mB (1 MiB, 999")
    assert len(found.about) == 203
    assert (found.total, found.free) == (None, None)
    with pytest.raises(CannotList) as caught:
        devices(binary(tmp_path, "\x1b]0;title\x07" + "x" * 3000 + "\n", ends="exit 1\n"), {})
    assert len(str(caught.value)) == 203
    assert "\x1b" not in str(caught.value)


def test_a_variable_that_cannot_be_one(tmp_path: Path) -> None:
    with pytest.raises(CannotList, match="null"):
        devices(binary(tmp_path, CUDA), {"LD_LIBRARY_PATH": "a\0b"})


def test_folders_of_libraries_come_first_and_once() -> None:
    assert with_libraries({"A": "1"}, None) == {"A": "1"}
    assert with_libraries({}, "/x") == {"LD_LIBRARY_PATH": "/x"}
    assert with_libraries({"LD_LIBRARY_PATH": "/y:/x:"}, "/x:/z") == {"LD_LIBRARY_PATH": "/x:/z:/y"}
    assert with_libraries({"LD_LIBRARY_PATH": ":rel"}, ":/x:.") == {
        "LD_LIBRARY_PATH": f"/x:{Path.cwd()}:{Path.cwd() / 'rel'}"
    }, "an empty element would be wherever it is started"
