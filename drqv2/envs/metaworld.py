"""Meta-World's models within EnvPool as they are drawn faster: without shadows and anti-aliasing."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from importlib import metadata
from pathlib import Path

from drqv2.errors import UserError

_MODELS = Path("mujoco", "metaworld")  # within EnvPool's assets, 6 MB
_QUALITY = re.compile(r"<quality\b[^>]*>")


def plain_models(assets: str) -> str:
    """Return a directory to give to `envpool.make` as `base_path`, in place of its own.

    It is in the user's cache (XDG_CACHE_HOME, else ~/.cache) and has copies of the models, with the same physics.
    Software draws them in a tenth of the time, in which most went into shadows.

    Args:
        assets: EnvPool's own directory.

    Raises:
        UserError: there is no place for the copies.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "drqv2"
    place = cache / f"metaworld_{metadata.version('envpool')}"
    if place.exists():
        return str(place)
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, ignore_cleanup_errors=True) as folder:
            made = Path(folder) / place.name
            shutil.copytree(Path(assets) / _MODELS, made / _MODELS)
            for scene in made.rglob("basic_scene*.xml"):
                scene.write_text(_QUALITY.sub('<quality shadowsize="0" offsamples="0"/>', scene.read_text()))
            try:
                made.rename(place)
            except OSError:
                if not place.exists():  # or else another process was sooner
                    raise
    except OSError as error:
        raise UserError(
            f"+env.shadows=false: no models can be written to {cache}: {error}\nSet XDG_CACHE_HOME to another directory"
        ) from error
    return str(place)
