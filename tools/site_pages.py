"""For mkdocs: the site's pages are the repository's own, where they are, so that their links hold in both places."""

from __future__ import annotations

import subprocess
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

SHOWN = [
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "Makefile",
    "Dockerfile",
    "docs",
    "results",
    "tests/third_party",
]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Return the site's files: what git knows of `SHOWN`, and what the theme brings."""
    root = Path(config.config_file_path).parent
    listed = subprocess.run(
        ["git", "ls-files", "--", *SHOWN], cwd=root, check=True, capture_output=True, text=True
    ).stdout.splitlines()
    shown = [File(name, str(root), config.site_dir, config.use_directory_urls) for name in listed]
    theirs = [file for file in files if not file.is_documentation_page()]
    return Files([*shown, *theirs])
