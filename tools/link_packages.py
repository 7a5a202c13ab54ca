"""Link what a wheel requires, and what that requires, from this environment into another one: quicker than installing.

    .venv/bin/python tools/link_packages.py WHEEL SITE_PACKAGES

Nothing else of this environment is there then, so that a requirement which the wheel does not declare is noticed.
"""

from __future__ import annotations

import sys
import zipfile
from email.parser import HeaderParser
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

_NOT_EVERYWHERE = {"labmaze"}  # dm-control requires it, and no task here uses it; see requirements.lock


def requirements_of_wheel(wheel: Path) -> list[str]:
    """Return what the metadata of a wheel require."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return HeaderParser().parsestr(archive.read(name).decode()).get_all("Requires-Dist", [])


def required(requirements: list[str], extras: frozenset[str] = frozenset()) -> dict[str, Distribution]:
    """Return the distributions that requirements name and those that these require, by name."""
    found: dict[str, Distribution] = {}
    seen = set()
    waiting = [(requirements, extras)]
    while waiting:
        texts, wanted = waiting.pop()
        for one in map(Requirement, texts):
            if one.marker and not any(one.marker.evaluate({"extra": extra}) for extra in (wanted or {""})):
                continue
            key = one.name.lower(), frozenset(one.extras)
            if key in seen or key[0] in _NOT_EVERYWHERE:
                continue
            seen.add(key)
            try:
                found[key[0]] = installed = distribution(one.name)
            except PackageNotFoundError:
                sys.exit(f"error: {one} is not installed here")
            if not one.specifier.contains(installed.version, prereleases=True):
                sys.exit(f"error: {one} is required, {installed.version} is installed here")
            waiting.append((installed.requires or [], key[1]))
    return found


def link(packages: dict[str, Distribution], target: Path) -> None:
    """Link the files and folders of distributions into a folder."""
    for installed in packages.values():
        for top in {file.parts[0] for file in installed.files or []} - {"..", "__pycache__"}:
            if not (target / top).exists():
                (target / top).symlink_to(Path(str(installed.locate_file(top))).resolve())


if __name__ == "__main__":
    link(required(requirements_of_wheel(Path(sys.argv[1]))), Path(sys.argv[2]))
