"""Count modules, imports and lines of a checkout: python tools/structure.py [DIRECTORY]."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path


def imports(tree: ast.Module, modules: set[str]) -> Iterator[str]:
    """Yield the modules among `modules` that a syntax tree imports, anywhere in it."""
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            parts = name.split(".")
            prefixes = (".".join(parts[:n]) for n in range(len(parts), 0, -1))
            yield from [prefix for prefix in prefixes if prefix in modules][:1]


def package(module: str) -> str:
    """Return the package of a library module, such as drqv2.replay, or the name of a root module."""
    return ".".join(module.split(".")[:2])


def cycles(edges: set[tuple[str, str]]) -> int:
    """Return how many modules import themselves through others."""
    reached = {a: {b for x, b in edges if x == a} for a, _ in edges}
    for _ in reached:
        for a in reached:
            reached[a] |= {c for b in reached[a] for c in reached.get(b, ())}
    return sum(a in targets for a, targets in reached.items())


def function_lengths(tree: ast.Module) -> Iterator[int]:
    """Yield the lines of each function without its docstring."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node, clean=False)
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            yield lines - (docstring.count("\n") + 1 if docstring else 0)


def main() -> None:
    """Print the numbers."""
    root = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    listed = subprocess.run(["git", "-C", str(root), "ls-files", "*.py"], capture_output=True, text=True, check=True)
    files = [Path(name) for name in listed.stdout.split()]
    library = [f for f in files if len(f.parts) == 1 or f.parts[0] == "drqv2"]
    tests = [f for f in files if f.parts[0] == "tests"]
    lines = {f: len((root / f).read_text().splitlines()) for f in library + tests}
    trees = {
        ".".join(f.with_suffix("").parts).removesuffix(".__init__"): ast.parse((root / f).read_text()) for f in library
    }
    edges = {(a, b) for a, tree in trees.items() for b in imports(tree, set(trees)) if a != b}
    between = {(package(a), package(b)) for a, b in edges} - {(package(a), package(a)) for a in trees}
    longest = max(library, key=lines.__getitem__)
    print(f"modules: {len(trees)}; imports between them: {len(edges)}; modules in import cycles: {cycles(edges)}")
    print(f"packages and root modules: {len({package(m) for m in trees})}; imports between them: {len(between)}")
    print(f"longest file: {longest}, {lines[longest]} lines")
    print(f"longest function: {max(n for tree in trees.values() for n in function_lengths(tree))} lines")
    in_drqv2 = sum(lines[f] for f in library if len(f.parts) > 1)
    print(f"library: {sum(lines[f] for f in library)} lines, {in_drqv2} of them in drqv2/")
    print(f"tests: {sum(lines[f] for f in tests)} lines")


if __name__ == "__main__":
    main()
