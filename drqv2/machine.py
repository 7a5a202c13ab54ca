"""Facts about the machine or container that this process runs in."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path


def has_nvidia() -> bool:
    """Return whether an NVIDIA GPU is to be seen here, whatever torch makes of it."""
    return shutil.which("nvidia-smi") is not None or Path("/proc/driver/nvidia/version").exists()


def has_nvidia_egl() -> bool:
    """Return whether NVIDIA's EGL is installed, which draws on the GPU."""
    return Path("/usr/share/glvnd/egl_vendor.d/10_nvidia.json").exists()


def is_software(renderer: str) -> bool:
    """Return whether the OpenGL whose GL_RENDERER this is draws on the CPU."""
    return any(name in renderer.lower() for name in ("llvmpipe", "softpipe", "swrast", "software"))


def processor() -> tuple[str, bool]:
    """Return the CPU's name, and whether it computes in bf16 by itself."""
    info = Path("/proc/cpuinfo")
    text = info.read_text() if info.exists() else ""
    names = [row.partition(":")[2].strip() for row in text.splitlines() if row.startswith("model name")]
    return (names or ["CPU"])[0], any(flag in text.split() for flag in ("avx512_bf16", "amx_bf16", "bf16"))


def cores() -> float:
    """Return the CPU cores that this process may use: its affinity and its container's quota."""
    count = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    with contextlib.suppress(OSError, ValueError):  # no cgroup, or "max": no quota
        quota, period = map(float, Path("/sys/fs/cgroup/cpu.max").read_text().split())
        count = min(count, quota / period)
    return count


def memory() -> tuple[float, float]:
    """Return the bytes of memory, and those of it that are available."""
    total = available = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    info = Path("/proc/meminfo")
    if info.exists():
        rows = dict(row.split(":") for row in info.read_text().splitlines())
        available = 1024.0 * int(rows["MemAvailable"].split()[0])
    with contextlib.suppress(OSError, ValueError):  # no cgroup, or "max": no limit
        limit = float(Path("/sys/fs/cgroup/memory.max").read_text())
        used = float(Path("/sys/fs/cgroup/memory.current").read_text())
        total, available = min(total, limit), min(available, limit - used)
    return total, available
