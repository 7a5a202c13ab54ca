"""MkDocs hook: build the site from the repository's own pages, so that their links work in both places."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

PAGES = [
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "Makefile",
    "Dockerfile",
    "docs",
    "results",
    "policies/*.md",
    "tests/third_party",
    "benchmarks/plans",
    "drqv2/agents/protocol.py",
    "drqv2/agents/drq_sac.py",
    "drqv2/agents/spq.py",
    "tests/regimes/elsewhere",
]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Return the site's files: those of `PAGES` that git tracks, and the theme's."""
    root = Path(config.config_file_path).parent
    tracked = subprocess.run(
        ["git", "ls-files", "--", *PAGES], cwd=root, check=True, capture_output=True, text=True
    ).stdout.splitlines()
    pages = [File(name, str(root), config.site_dir, config.use_directory_urls) for name in tracked]
    theme = [file for file in files if not file.is_documentation_page()]
    return Files([*pages, *theme])


def on_page_content(html: str, **about: Any) -> str:
    """Return a page whose tables may break long names after a dot or a comma, and so fit the screen."""

    def breakable(cell: re.Match[str]) -> str:
        return re.sub(r"(?<=[.,])(?=[A-Za-z_][^<>]*<)", "<wbr>", cell[0])  # in text, not in tags

    return re.sub(r"(?<=</td>)\s*<td\b[^>]*>.*?</td>", breakable, html, flags=re.DOTALL)  # not a row's first cell
