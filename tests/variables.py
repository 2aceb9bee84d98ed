"""Environment variables that the product's code reads, found in the code itself."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from documents import ROOT

PLACES = ("src", "scripts", "tools")
MAPPINGS = ("environ", "environment", "variables", "settings")
"""What a mapping of variables is called here."""

VARIABLE = re.compile(r"[A-Z][A-Z0-9_]+")


@cache
def read() -> frozenset[str]:
    """Names of all of them."""
    trees = {path: ast.parse(path.read_text("utf-8")) for place in PLACES for path in (ROOT / place).rglob("*.py")}
    constants = {name: value for tree in trees.values() for name, value in _constants(tree)}
    found = {name for path, tree in trees.items() for name in _names(path, tree, constants)}
    return frozenset(name for name in found if VARIABLE.fullmatch(name))


def _constants(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=str(text))):
                yield name, text
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
                for one, value in zip(names, values, strict=False):
                    if isinstance(one, ast.Name) and isinstance(value, ast.Constant) and isinstance(value.value, str):
                        yield one.id, value.value


def _names(path: Path, tree: ast.Module, constants: dict[str, str]) -> Iterator[str]:
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    for node in ast.walk(tree):
        key = _key(node)
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            yield key.value
        elif isinstance(key, ast.Name) and key.id in constants:
            yield constants[key.id]
        elif isinstance(key, ast.Name):
            # A parameter, or what a loop goes through: names that stand in the function, or in those that call it.
            inside = [function for function in functions if any(inner is node for inner in ast.walk(function))]
            assert inside, f"{path}: which variable is read here?"
            found = {name for function in (inside[-1], *_callers(functions, inside[-1])) for name in _spelt(function)}
            assert found, f"{path}: which variables does {inside[-1].name} read?"
            yield from found


def _key(node: ast.AST) -> ast.expr | None:
    """What is looked up, where `node` looks up a variable: `environment.get(KEY)`, `os.environ[KEY]`,
    `KEY in environment`, or a function of ours that is given both."""
    match node:
        case ast.Call(func=ast.Attribute(value=mapping, attr="get"), args=[key, *_]) if _is_mapping(mapping):
            return key
        case ast.Call(func=ast.Name(), args=[mapping, key, *_]) if _is_mapping(mapping) and _is_variable(key):
            return key
        case ast.Subscript(value=mapping, slice=key, ctx=ast.Load()) if _is_mapping(mapping):
            return key
        case ast.Compare(left=key, ops=[ast.In() | ast.NotIn()], comparators=[mapping]) if _is_mapping(mapping):
            return key
    return None


def _is_mapping(node: ast.expr) -> bool:
    return (isinstance(node, ast.Name) and node.id in MAPPINGS) or (
        isinstance(node, ast.Attribute) and node.attr == "environ"
    )


def _is_variable(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and bool(VARIABLE.fullmatch(node.value))


def _callers(
    functions: list[ast.FunctionDef | ast.AsyncFunctionDef], called: ast.FunctionDef | ast.AsyncFunctionDef
) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [
        function
        for function in functions
        if function is not called
        and any(
            isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == called.name
            for node in ast.walk(function)
        )
    ]


def _spelt(function: ast.AST) -> set[str]:
    return {
        node.value
        for node in ast.walk(function)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and VARIABLE.fullmatch(node.value)
    }
