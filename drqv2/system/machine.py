"""What the machine or container offers: GPUs, cores, memory, precision."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drqv2.errors import UserError

if TYPE_CHECKING:
    import torch

SHARED_MEMORY = Path("/dev/shm")  # nosec B108: where Linux keeps it, often limited in containers


def has_nvidia() -> bool:
    """Return whether there is an NVIDIA driver, even if torch cannot use it."""
    return shutil.which("nvidia-smi") is not None or Path("/proc/driver/nvidia/version").exists()


def has_nvidia_egl() -> bool:
    """Return whether NVIDIA's EGL, which renders on the GPU, is installed."""
    return Path("/usr/share/glvnd/egl_vendor.d/10_nvidia.json").exists()


def is_software(renderer: str) -> bool:
    """Return whether an OpenGL implementation renders on the CPU, judging by its GL_RENDERER string."""
    return any(name in renderer.lower() for name in ("llvmpipe", "softpipe", "swrast", "software"))


def processor() -> tuple[str, str]:
    """Return the CPU's name, and "fast", "slow" or "emulated": how it multiplies bf16, compared with fp32.

    ONEDNN_MAX_CPU_ISA may limit it. Intel's processors are slow if they have no AMX or a virtual machine hides it: with
    AVX-512's instructions for bf16 alone, products take twice as long as in fp32, on AMD's half as long
    (https://github.com/libxsmm/tpp-mlir/pull/1025; the same was measured for results/performance.md).
    """
    text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""  # Linux alone has it
    words = text.split()
    names = [row.partition(":")[2].strip() for row in text.splitlines() if row.startswith("model name")]
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA", "ALL").upper()
    amx = "amx_bf16" in words and any(name in limit for name in ("ALL", "DEFAULT", "AMX"))
    vectors = any(name in limit for name in ("ALL", "DEFAULT", "BF16", "FP16", "AMX", "AVX10"))
    if amx or (vectors and ("bf16" in words or ("avx512_bf16" in words and "GenuineIntel" not in words))):
        kind = "fast"
    else:
        kind = "slow" if vectors and "avx512_bf16" in words else "emulated"
    return (names or [platform.processor() or "CPU"])[0], kind


def resolve_precision(precision: str, device: str) -> str:
    """Return "fp32" or "bf16". "auto" means bf16 where the agent's device multiplies it faster than fp32."""
    if precision != "auto":
        return precision
    if device.startswith("cuda"):
        import torch

        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"
    return "bf16" if processor()[1] == "fast" else "fp32"


def with_number(device: torch.device) -> torch.device:
    """Return a device with its number: "cuda" is the current GPU, which may be another one later."""
    import torch

    return torch.device("cuda", torch.cuda.current_device()) if device == torch.device("cuda") else device


def on(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Return a context in which a GPU is the current one; on a CPU, one without effect."""
    import torch

    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


def resolve_compile(compile: str | bool, device: str) -> bool:
    """Return whether to compile the networks on the agent's device. "auto" means on CUDA only.

    Raises:
        UserError: compiling for the CPU was requested, but the C++ compiler or Python.h is missing.
    """
    if not isinstance(compile, bool):
        return device.startswith("cuda")
    if compile and not device.startswith("cuda"):
        compiler = shutil.which(os.environ.get("CXX", "g++")) or shutil.which("clang++")
        if not (compiler and Path(sysconfig.get_paths()["include"], "Python.h").exists()):
            raise UserError(
                "compile=true: a C++ compiler or Python.h cannot be found\n"
                "apt-get install -y g++ python3-dev, or use compile=auto, which does not compile on a CPU"
            )
    return compile


def cores() -> float:
    """Return the number of CPU cores that this process may use, by its affinity and its container's quota."""
    count = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    with contextlib.suppress(OSError, ValueError):  # no cgroup, or "max": no quota
        quota, period = map(float, Path("/sys/fs/cgroup/cpu.max").read_text().split())
        count = min(count, quota / period)
    return count


def jobs_that_fit() -> int:
    """Return how many runs fit on this machine in parallel.

    With GPUs, a run needs four cores and 30 GB of GPU memory, 21 GB of it for a million transitions; each GPU gets at
    least one. Without, a run needs two cores, for the learner and the environment's process, and 4 GB of memory.
    """
    import torch

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if gpus == 0:
        return max(1, min(int(memory()[1] / 4e9), int(cores() / 2)))
    least = min(torch.cuda.get_device_properties(i).total_memory for i in range(gpus))
    return max(gpus, min(gpus * (least // (30 * 10**9)), int(cores() / 4)))


def limit_openmp_spinning() -> None:
    """Make idle OpenMP threads sleep early, so that the environment's process gets the core.

    GNU OpenMP spins for some milliseconds, about as long as an environment renders. Call this before importing torch.
    Settings of yours take precedence.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")


def render_threads(processes: int) -> int | None:
    """Return the number of software rendering threads for each of several processes that share the cores.

    None if LP_NUM_THREADS is set. The learner's threads are not counted; rendering threads do not slow it down.
    """
    return None if "LP_NUM_THREADS" in os.environ else max(1, int(cores() / processes))


def learner_threads(actors: int) -> int | None:
    """Return the number of a learner's threads beside actors that use a core each; None if OMP_NUM_THREADS is set.

    The threads wait for each other after each operation, so one whose core an actor takes holds up the others. Half of
    the cores are the learner's in any case: then the actors wait for it.
    """
    if "OMP_NUM_THREADS" in os.environ:
        return None
    return max(1, int(cores() / 2), int(cores()) - actors)


def memory() -> tuple[float, float]:
    """Return the total and the available memory of this process in bytes, page cache included."""
    import psutil  # only here: help and messages do without it

    total, available = map(float, psutil.virtual_memory()[:2])
    if not Path("/proc/self/cgroup").exists():
        return total, available
    # 0::/path is the single hierarchy of cgroup v2; N:memory:/path is the memory controller of v1.
    cgroups = dict(line.split(":", 2)[1:] for line in Path("/proc/self/cgroup").read_text().splitlines())
    if "memory" in cgroups:
        root, names = Path("/sys/fs/cgroup/memory"), ("memory.limit_in_bytes", "memory.usage_in_bytes")
    else:
        root, names = Path("/sys/fs/cgroup"), ("memory.max", "memory.current")
    own = root / cgroups.get("memory", cgroups.get("", "/")).lstrip("/")  # not there inside a container
    with contextlib.suppress(OSError, ValueError):  # no such cgroup, or "max": no limit
        limit, used = (float(((own if own.is_dir() else root) / name).read_text()) for name in names)
        total, available = min(total, limit), min(available, limit - used)
    return total, available
