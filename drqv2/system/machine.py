"""Facts about the machine or container that this process runs in."""

from __future__ import annotations

import contextlib
import os
import shutil
import sysconfig
from pathlib import Path

from drqv2.errors import UserError


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


def resolve_precision(precision: str, device: str) -> str:
    """Return fp32 or bf16: for auto, bf16 where the hardware multiplies it natively.

    Args:
        precision: auto, fp32 or bf16.
        device: where the agent lives.
    """
    if precision != "auto":
        return precision
    if device.startswith("cuda"):
        import torch

        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"
    return "bf16" if processor()[1] else "fp32"


def resolve_compile(compile: str | bool, device: str) -> bool:
    """Return whether to compile: for auto, on CUDA alone.

    Args:
        compile: auto, True or False.
        device: where the agent lives.

    Raises:
        UserError: the networks are to be compiled for a CPU, and there is no C++ compiler or no Python.h.
    """
    if not isinstance(compile, bool):
        return device.startswith("cuda")
    if compile and not device.startswith("cuda"):
        missing = [] if shutil.which(os.environ.get("CXX", "g++")) or shutil.which("clang++") else ["a C++ compiler"]
        if not Path(sysconfig.get_paths()["include"], "Python.h").exists():
            missing.append("Python.h")
        if missing:
            raise UserError(
                f"compile=true: {' and '.join(missing)} cannot be found; "
                "apt-get install -y g++ python3-dev, or leave compile=auto, which does without on a CPU"
            )
    return compile


def cores() -> float:
    """Return the CPU cores that this process may use: its affinity and its container's quota."""
    count = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    with contextlib.suppress(OSError, ValueError):  # no cgroup, or "max": no quota
        quota, period = map(float, Path("/sys/fs/cgroup/cpu.max").read_text().split())
        count = min(count, quota / period)
    return count


def jobs_that_fit() -> int:
    """Return how many runs fit on this machine side by side.

    With GPUs: four cores each, and 30 GB of GPU memory, of which 21 are for a million transitions; at least one a GPU.
    Without: two cores and 4 GB of memory each, for the learner and for the environment's process beside it.
    """
    import torch

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if gpus == 0:
        return max(1, min(int(memory()[1] / 4e9), int(cores() / 2)))
    least = min(torch.cuda.get_device_properties(i).total_memory for i in range(gpus))
    return max(gpus, min(gpus * (least // (30 * 10**9)), int(cores() / 4)))


def limit_openmp_spinning() -> None:
    """Have OpenMP's threads sleep soon after a computation, and leave the core to the environment's process.

    GNU's wait busily for some milliseconds, about as long as an environment draws. To be called before torch is loaded;
    what the user has set stays.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")


def render_threads(processes: int) -> int | None:
    """Return the threads for software rendering in each of several processes that share the cores.

    None where LP_NUM_THREADS is set. Threads of a learner are not counted: it does not slow down.
    """
    return None if "LP_NUM_THREADS" in os.environ else max(1, int(cores() / processes))


def memory() -> tuple[float, float]:
    """Return the bytes of memory that this process may use, page cache included, and those of it that are available."""
    total = available = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    info = Path("/proc/meminfo")
    if info.exists():
        rows = dict(row.split(":") for row in info.read_text().splitlines())
        available = 1024.0 * int(rows["MemAvailable"].split()[0])
    for names in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
        with contextlib.suppress(OSError, ValueError):  # no such cgroup, or "max": no limit
            limit, used = (float((_memory_cgroup() / name).read_text()) for name in names)
            total, available = min(total, limit), min(available, limit - used)
    return total, available


def _memory_cgroup() -> Path:
    """Return where the kernel tells this process's memory limit: as seen in a container, or on the machine itself."""
    root = Path("/sys/fs/cgroup")
    # 0::/path is the one hierarchy of version 2; N:memory:/path the memory controller's own of version 1.
    own = dict(line.split(":", 2)[1:] for line in Path("/proc/self/cgroup").read_text().splitlines())
    base = root / "memory" if "memory" in own else root
    inside = base / own.get("memory", own.get("", "/")).lstrip("/")
    return inside if inside.is_dir() else base
