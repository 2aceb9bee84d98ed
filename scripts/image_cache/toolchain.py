"""The programs that compile: found, asked what they are, and all that is wrong with them said at once."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from jev_local.launch.errors import CannotStart

OLDEST_CMAKE = (3, 18)
"""llama.cpp's build files ask for 3.14, but scripts/ui-assets.cmake, which building llama-server runs, for 3.18: with
3.16 the build fails there."""

PROBE = "#include <cstddef>\n#include <filesystem>\n"
WANTED = {
    "__GNUC__": r"\d+",
    "__x86_64__": "1",
    "__linux__": "1",
    "__GLIBCXX__": r"\d+",
    "_GLIBCXX_USE_CXX11_ABI": "1",
}
OTHER_FAMILIES = {
    "__clang__": "clang",
    "__INTEL_COMPILER": "the Intel compiler",
    "__NVCOMPILER": "the NVIDIA compiler",
}

SECONDS = 30


@dataclass(frozen=True, slots=True)
class Toolchain:
    """Absolute paths of the programs, and what they say they are."""

    cc: str
    cxx: str
    cmake: str
    ninja: str
    versions: Mapping[str, str]


def require_platform() -> None:
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "AMD64"):
        raise CannotStart(
            f"the image-cache build is for Linux on x86_64, and this is {platform.system()} on {platform.machine()}"
        )


def find(environment: Mapping[str, str] = os.environ) -> Toolchain:
    """CannotStart names everything that is missing or will not do, each with its remedy. Nothing is installed."""
    require_platform()
    complaints: list[str] = []
    paths = {
        setting: _which(setting, default, package, environment, complaints)
        for setting, default, package in (
            ("CC", "gcc", "gcc"),
            ("CXX", "g++", "g++"),
            ("CMAKE", "cmake", "cmake"),
            ("NINJA", "ninja", "ninja-build"),
        )
    }
    _which("READELF", "readelf", "binutils", environment, complaints)
    versions = {setting: _first_line(path, "--version") for setting, path in paths.items() if path}
    for setting, language in (("CC", "c"), ("CXX", "c++")):
        if paths[setting]:
            complaints += _wrong_compiler(setting, paths[setting], language)
    if paths["CMAKE"]:
        complaints += _old_cmake(versions["CMAKE"])
    if complaints:
        raise CannotStart("this cannot be built here yet:\n" + "\n".join(f"  - {line}" for line in complaints))
    return Toolchain(
        cc=paths["CC"],
        cxx=paths["CXX"],
        cmake=paths["CMAKE"],
        ninja=paths["NINJA"],
        versions={setting.lower(): said for setting, said in versions.items()},
    )


def _which(setting: str, default: str, package: str, environment: Mapping[str, str], complaints: list[str]) -> str:
    """The absolute path, or "" after a complaint."""
    named = environment.get(setting)
    found = shutil.which(Path(named).expanduser() if named else default)
    if found is not None:
        return str(Path(found).absolute())
    if named:
        complaints.append(f"{setting}={named} is not a program that can be run: correct it, or unset {setting}")
    else:
        complaints.append(
            f"{default} is missing: install it (on Debian and Ubuntu: apt install {package}), "
            f"or name another with {setting}"
        )
    return ""


def _wrong_compiler(setting: str, path: str, language: str) -> list[str]:
    """Complaints about it. The official ROCm plugin was made with GCC and libstdc++; C++ objects that cross between
    two families, or between two layouts of std::string, are undefined behaviour and no link error."""
    arguments = [path, "-x", language, "-dM", "-E", "-"]
    standard, source = ("-std=c++17", PROBE) if language == "c++" else ("-std=c11", "")
    try:
        asked = subprocess.run(
            [*arguments, standard], input=source, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return [f"{setting} {path} cannot be asked what it is: {error}"]
    if asked.returncode != 0:
        last = (asked.stderr.strip().splitlines() or ["it says nothing"])[-1]
        return [f"{setting} {path} does not take {standard}, or lacks its headers ({last}): install a newer one"]
    macros = dict(re.findall(r"^#define (\w+)(?: (.*))?$", asked.stdout, re.MULTILINE))
    gcc = "gcc" if language == "c" else "g++"
    for macro, family in OTHER_FAMILIES.items():
        if macro in macros:
            return [f"{setting} {path} is {family}, whose C++ does not fit the GPU plugin: name a {gcc} with {setting}"]
    names = WANTED if language == "c++" else {name: WANTED[name] for name in ("__GNUC__", "__x86_64__", "__linux__")}
    unlike = [name for name, value in names.items() if not re.fullmatch(value, macros.get(name, ""))]
    if unlike:
        return [f"{setting} {path} is not GCC with libstdc++ for Linux on x86_64 ({', '.join(unlike)}): name a {gcc}"]
    return []


def _old_cmake(said: str) -> list[str]:
    found = re.search(r"(\d+)\.(\d+)", said)
    version = (int(found[1]), int(found[2])) if found else (0, 0)
    if version >= OLDEST_CMAKE:
        return []
    return [f"CMake {'.'.join(map(str, OLDEST_CMAKE))} or newer is needed, and this is '{said}': name one with CMAKE"]


def _first_line(*command: str) -> str:
    try:
        asked = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return (asked.stdout.strip().splitlines() or ["unknown"])[0]
