"""The argument parsers of the programs that the documents name: the programs' own, as they are when `main` is about to
parse. Programs have the names that `commands.program` gives them."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import cache
from importlib import import_module
from io import StringIO
from types import ModuleType
from typing import Any

from documents import ROOT


class Unparsable(Exception):
    """The program's own complaint."""


class _Caught(BaseException):
    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self.parser = parser


@cache
def parser(name: str) -> argparse.ArgumentParser:
    """KeyError where there is no such command."""
    if name == "scripts/test":
        return _pytest()
    if name.startswith(("jev-local ", "systemone ")):
        whole_name, _, command = name.partition(" ")
        return commands_of(whole(whole_name))[command]
    if name == "jev_local.launch.image_cache":
        from jev_local.launch.image_cache import parser as made

        return made()
    if name == "scripts/bootstrap.py":
        return _bootstrap()
    return _caught(_module(name))


def whole(name: str) -> argparse.ArgumentParser:
    """Of `jev-local` or `systemone`, all commands in it."""
    from jev_local import cli_arguments
    from jev_local.launch import arguments

    return (arguments if name == "jev-local" else cli_arguments).parser()


@cache
def api_parser() -> argparse.ArgumentParser:
    """For what follows `--`."""
    from jev_local.launch.arguments import add_api_options

    made = argparse.ArgumentParser(prog="--", allow_abbrev=False)
    add_api_options(made)
    return made


def commands_of(made: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    (found,) = (action for action in made._actions if isinstance(action, argparse._SubParsersAction))
    return dict(found.choices)


def check(name: str, words: Sequence[str]) -> argparse.Namespace:
    """The words as the program reads them. Raises Unparsable."""
    words = list(words)
    own, after = words, None
    if "--" in words and name in ("jev-local up", "jev_local.launch.image_cache", "scripts/bootstrap.py"):
        at = words.index("--")
        own, after = words[:at], words[at + 1 :]
    if after is not None and name != "scripts/bootstrap.py":
        _parsed(api_parser(), after)
    return _parsed(parser(name), own)


@cache
def flags(name: str) -> dict[str, argparse.Action]:
    """Long options of the program, hidden ones included, and what they do."""
    return {
        flag: action
        for action in parser(name)._actions
        for flag in action.option_strings
        if flag.startswith("--") and flag not in ("--help", "--version")
    }


@cache
def names() -> tuple[str, ...]:
    """Every program of ours that takes options."""
    return tuple(sorted(_names()))


def _names() -> Iterator[str]:
    for name in ("jev-local", "systemone"):
        yield from (f"{name} {word}" for word in commands_of(whole(name)))
    yield "jev_local.launch.image_cache"
    for path in sorted((ROOT / "scripts").glob("*.py")):
        if "argparse" in path.read_text("utf-8") or "build_image_cache import" in path.read_text("utf-8"):
            yield f"scripts/{path.name}"
    for path in sorted((ROOT / "tools").glob("*.py")):
        if "__main__" in path.read_text("utf-8"):
            yield f"tools.{path.stem}"


def _parsed(made: argparse.ArgumentParser, words: Sequence[str]) -> argparse.Namespace:
    said = StringIO()
    try:
        with redirect_stderr(said), redirect_stdout(StringIO()):
            return made.parse_args(list(words))
    except SystemExit as stop:
        if stop.code in (0, None):  # --help
            return argparse.Namespace()
        raise Unparsable(said.getvalue().strip().splitlines()[-1]) from None


def _module(name: str) -> ModuleType:
    if not name.endswith(".py"):
        return import_module(name)
    spec = importlib.util.spec_from_file_location(f"documented_{name.rpartition('/')[2][:-3]}", ROOT / name)
    assert spec is not None
    assert spec.loader is not None
    made = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # where its dataclasses look for their names
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        spec.loader.exec_module(made)
    finally:
        sys.path.remove(str(ROOT / "scripts"))
    return made


def _caught(module: ModuleType) -> argparse.ArgumentParser:
    """The parser with which `main` begins."""
    main: Callable[..., Any] = module.main
    with _catching():
        try:
            main([]) if main.__code__.co_argcount else main()
        except _Caught as caught:
            return caught.parser
    raise AssertionError(f"{module.__name__} parses no arguments")


@contextmanager
def _catching() -> Iterator[None]:
    def catch(self: argparse.ArgumentParser, *_: object, **__: object) -> argparse.Namespace:
        raise _Caught(self)

    before, argparse.ArgumentParser.parse_args = argparse.ArgumentParser.parse_args, catch  # type: ignore[assignment]
    try:
        yield
    finally:
        argparse.ArgumentParser.parse_args = before  # type: ignore[method-assign]


def _bootstrap() -> argparse.ArgumentParser:
    """It reads its one word by itself."""
    made = argparse.ArgumentParser(prog="bootstrap.py")
    made.add_argument("extras", nargs="?", type=_extras)
    return made


def _extras(words: str) -> str:
    import tomllib

    known = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    for word in words.split(","):
        if word not in known:
            raise argparse.ArgumentTypeError(f"no extra is called {word}")
    return words


def _pytest() -> argparse.ArgumentParser:
    """Arguments go to pytest: of its own, those that are of use here; and files of tests."""
    made = argparse.ArgumentParser(prog="scripts/test")
    made.add_argument("-k")
    made.add_argument("-s", action="store_true")
    made.add_argument("-x", action="store_true")
    made.add_argument("files", nargs="*", type=_test)
    return made


def _test(word: str) -> str:
    if not (ROOT / word.partition("::")[0]).exists():
        raise argparse.ArgumentTypeError(f"there is no {word}")
    return word
