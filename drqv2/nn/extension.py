"""Builds C++ code of this project, once for each kind of processor, and keeps it in torch's cache of extensions."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import tempfile
import warnings
from pathlib import Path

_FLAGS = ("-O3", "-march=native", "-fno-math-errno")


@functools.cache
def load(name: str, sources: tuple[Path, ...], *flags: str) -> ctypes.CDLL | None:
    """Return a library of C++ code, built if necessary; None where it cannot be built, after a warning.

    Args:
        name: of the library's file.
        sources: files that make one unit, in this order; without torch's headers, which take half a minute.
        flags: of the compiler, besides those for speed.
    """
    if not shutil.which("c++") or not shutil.which("ninja"):
        return None
    try:
        return ctypes.CDLL(str(_built(name, sources, (*_FLAGS, *flags))))
    except (RuntimeError, OSError) as error:
        reason = str(error).splitlines()[0]
        warnings.warn(f"C++ code cannot be built ({reason}): a slower way is used", stacklevel=2)
        return None


def _built(name: str, sources: tuple[Path, ...], flags: tuple[str, ...]) -> Path:
    """Return the library's file.

    torch's loader leaves a lock behind when its process is killed, and then waits for it forever. So each process
    builds in a directory of its own.
    """
    from torch.utils import cpp_extension

    source = "".join(f'#line 1 "{path.name}"\n{path.read_text()}' for path in sources)
    key = f"{name}_" + hashlib.sha256(repr((source, flags, _processor())).encode()).hexdigest()[:16]
    cache = Path(os.environ.get("TORCH_EXTENSIONS_DIR") or cpp_extension.get_default_build_root()) / "drqv2"
    library = cache / f"{key}.so"
    if not library.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            path = Path(folder, f"{name}.cpp")
            path.write_text(source)
            # By the key: a name that this process has built before would get a number.
            cpp_extension.load(key, [str(path)], list(flags), build_directory=folder, is_python_module=False)
            Path(folder, library.name).replace(library)
    return library


def _processor() -> str:
    """Return what tells processors apart: code for one may not run on another that shares the cache."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
    return f"{platform.machine()} {flags}"
