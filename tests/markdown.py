"""Tables of Markdown pages, for tests that read the docs as their readers do."""

from __future__ import annotations

import re
from typing import Any

import yaml


def cells(line: str) -> list[str]:
    """Return the cells of a table's row; a cell may hold an escaped bar."""
    return [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def tables(text: str) -> list[tuple[list[str], list[list[str]]]]:
    """Return head and rows of each table of a page."""
    found = []
    for block in re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE):
        head, _, *rows = map(cells, block.splitlines())
        found.append((head, rows))
    return found


def value(text: str) -> Any:
    """Return the value that a configuration key has been given as text."""
    try:
        return float(text)  # YAML takes 8e-05 for text
    except ValueError:
        return yaml.safe_load(text)
