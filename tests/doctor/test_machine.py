"""Memory and disk as the kernel tells them, limits of containers included."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jev_local.doctor import machine
from jev_local.settings import GIB, MIB

MEMINFO = (
    "MemTotal:       16777216 kB\nMemFree:         1000 kB\nMemAvailable:   12582912 kB\nHugePages_Total:       0\n"
)


class Kernel:
    """A /proc and a /sys/fs/cgroup of our own."""

    def __init__(self, root: Path) -> None:
        self.proc, self.cgroups = root / "proc", root / "cgroup"
        self.write(self.proc / "meminfo", MEMINFO)

    def write(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def group(self, at: str, *, limit: str, used: int, stat: str = "") -> None:
        self.write(self.cgroups / at / "memory.max", f"{limit}\n")
        self.write(self.cgroups / at / "memory.current", f"{used}\n")
        self.write(self.cgroups / at / "memory.stat", stat)

    def seen(self) -> tuple[int | None, int | None]:
        room = machine.memory(self.proc, self.cgroups)
        return room.total, room.available


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    return Kernel(tmp_path)


def test_a_machine_without_limits(kernel: Kernel) -> None:
    assert kernel.seen() == (16 * GIB, 12 * GIB)
    kernel.write(kernel.proc / "self" / "cgroup", "0::/user.slice\n")
    kernel.group("user.slice", limit="max", used=5 * GIB)
    assert kernel.seen() == (16 * GIB, 12 * GIB)


def test_the_tightest_group_above_counts(kernel: Kernel) -> None:
    kernel.write(kernel.proc / "self" / "cgroup", "0::/a/b\n")
    kernel.group(
        "a", limit=str(2 * GIB), used=GIB, stat=f"anon 5\ninactive_file {256 * MIB}\nactive_file {256 * MIB}\n"
    )
    kernel.group("a/b", limit=str(4 * GIB), used=GIB)
    # half of what is used is files, which the kernel takes back
    assert kernel.seen() == (2 * GIB, 1536 * MIB)
    assert "control group" in machine.memory(kernel.proc, kernel.cgroups).what


def test_a_container_sees_only_its_own_root(kernel: Kernel) -> None:
    kernel.write(kernel.proc / "self" / "cgroup", "0::/docker/0123\n")
    kernel.group(".", limit=str(GIB), used=2 * GIB)
    assert kernel.seen() == (GIB, 0)


def test_version_1(kernel: Kernel) -> None:
    kernel.write(kernel.proc / "self" / "cgroup", "5:cpu:/x\n4:memory:/x\n")
    folder = kernel.cgroups / "memory" / "x"
    kernel.write(folder / "memory.limit_in_bytes", f"{3 * GIB}\n")
    kernel.write(folder / "memory.usage_in_bytes", f"{GIB}\n")
    kernel.write(folder / "memory.stat", f"total_inactive_file {512 * MIB}\n")
    kernel.write(kernel.cgroups / "memory" / "memory.limit_in_bytes", "9223372036854771712\n")
    assert kernel.seen() == (3 * GIB, 2560 * MIB)


@pytest.mark.parametrize("text", ["", "garbage", "0::", "0::/\n:\n::::\n", "0::/../../..\n"])
def test_nonsense_is_no_limit(kernel: Kernel, text: str) -> None:
    kernel.write(kernel.proc / "self" / "cgroup", text)
    kernel.group(".", limit="-5 apples", used=1)
    assert kernel.seen() == (16 * GIB, 12 * GIB)


def test_without_meminfo_the_pages_are_counted(tmp_path: Path) -> None:
    room = machine.memory(tmp_path, tmp_path)
    assert room.total == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert room.available is None


def test_this_machine_has_memory() -> None:
    room = machine.memory()
    assert room.total is not None
    assert room.total > 100 * MIB
    assert room.available is None or 0 < room.available <= room.total


def test_a_store_that_is_not_there_yet(tmp_path: Path) -> None:
    found = machine.store(tmp_path / "not" / "yet", GIB)
    assert (found.bytes, found.kept) == (GIB, 0)
    assert found.free is not None
    assert not (tmp_path / "not").exists()


def test_what_lies_in_a_store_is_counted(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(1000))
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "b").write_bytes(bytes(5))
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert 1000 <= machine.store(tmp_path, GIB).kept < 1000 + 500


def test_a_folder_in_memory_is_known(tmp_path: Path, kernel: Kernel) -> None:
    below = tmp_path / "with space" / "slots"
    below.mkdir(parents=True)
    mounts = f"/dev/sda / ext4 rw 0 0\ntmpfs {tmp_path}/with\\040space tmpfs rw 0 0\nproc /proc proc rw 0 0\n"
    kernel.write(kernel.proc / "self" / "mounts", mounts)
    assert machine.store(below, GIB, kernel.proc).in_memory
    assert machine.store(below / "not yet", GIB, kernel.proc).in_memory
    assert not machine.store(tmp_path, GIB, kernel.proc).in_memory


def test_links_in_a_circle_are_no_store(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    assert machine.store(tmp_path / "a", GIB).kept == 0
