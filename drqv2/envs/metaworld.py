"""Copies of Meta-World's models that render faster, without shadows and anti-aliasing."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from pathlib import Path

from drqv2.errors import UserError

CAMERAS = ("topview", "corner", "corner2", "corner3", "behindGripper", "gripperPOV")  # in the order of their numbers
_MODELS = Path("mujoco", "metaworld")  # within EnvPool's assets, 6 MB
_QUALITY, _PLAIN = re.compile(rb"<quality\b[^>]*>"), b'<quality shadowsize="0" offsamples="0"/>'


def models_without_shadows(assets: str) -> str:
    """Return a directory to give to `envpool.make` as `base_path`, in place of its own.

    It is in the user's cache (XDG_CACHE_HOME, else ~/.cache) and holds copies of the models, with the same physics.
    Most of the time of rendering in software goes into shadows.

    Args:
        assets: EnvPool's own directory.

    Raises:
        UserError: there are no such models, or no place for the copies.
    """
    source = Path(assets) / _MODELS
    models = {path.relative_to(source): path.read_bytes() for path in sorted(source.rglob("*.*")) if path.is_file()}
    scenes = {name: _QUALITY.sub(_PLAIN, text) for name, text in models.items() if _QUALITY.search(text)}
    if not scenes:
        raise UserError(f"+env.shadows=false: there are no models of Meta-World with shadows in {source}; leave it out")
    models |= scenes
    digest = hashlib.sha256(b"".join(str(name).encode() + text for name, text in models.items())).hexdigest()[:16]
    try:
        home = os.environ.get("XDG_CACHE_HOME", "")
        cache = (Path(home) if os.path.isabs(home) else Path.home() / ".cache") / "drqv2"
        place = cache / f"metaworld_{digest}"
        if not all((place / _MODELS / name).is_file() for name in models):
            _write(models, place)
    except (OSError, RuntimeError) as error:  # RuntimeError: the user has no home
        raise UserError(
            f"+env.shadows=false: models cannot be written: {error}\nSet XDG_CACHE_HOME to a writable directory"
        ) from error
    return str(place)


def _write(models: dict[Path, bytes], place: Path) -> None:
    """Write models to a directory, which appears with all of them; another process may be doing the same."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent, ignore_cleanup_errors=True) as folder:
        made = Path(folder) / place.name
        for name, text in models.items():
            path = made / _MODELS / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text)
        if place.exists() and not all((place / _MODELS / name).is_file() for name in models):
            shutil.rmtree(place)  # some of its files were deleted
        try:
            made.rename(place)
        except OSError:
            if not place.exists():  # another process was faster
                raise
