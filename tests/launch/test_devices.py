"""What a binary says of the GPUs that it sees."""

from pathlib import Path

import pytest

from jev_local.backend.devices import CannotList, Device, devices, has_gpu, with_libraries

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


def test_folders_of_libraries_come_first_and_once() -> None:
    assert with_libraries({"A": "1"}, None) == {"A": "1"}
    assert with_libraries({}, "/x") == {"LD_LIBRARY_PATH": "/x"}
    assert with_libraries({"LD_LIBRARY_PATH": "/y:/x:"}, "/x:/z") == {"LD_LIBRARY_PATH": "/x:/z:/y"}
