"""`python -m drqv2.doctor`: what this machine has, what is wrong with it, and the command that mends each thing.

Exit code 0 when a run would work (perhaps slowly), 1 when something would stop it.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
_SHOWN = ("torch", "mujoco", "dm-control", "hydra-core", "numpy")
_INSTALL = "make setup    (or: pip install -e .)"
_SOFTWARE = ("llvmpipe", "softpipe", "swrast", "software rasterizer")
_SLOW_RUN = 24.0  # hours
_PREFETCH = 2  # batches that each worker of the replay holds ready


@dataclass(frozen=True)
class Line:
    """One finding: `status` is ok, warn or fail; `advice` holds what to do, best first."""

    status: str
    name: str
    text: str
    advice: tuple[str, ...] = ()


@dataclass
class Settings:
    """The part of a run's configuration that costs time and space; the defaults are the paper's."""

    preset: str = "paper"
    image_size: int = 84
    frame_stack: int = 3
    action_repeat: int = 2
    batch_size: int = 256
    num_workers: int = 4
    num_train_frames: int = 1_100_000
    replay_buffer_size: int = 1_000_000
    lr: float = 1e-4
    agent: dict[str, Any] = field(
        default_factory=lambda: {
            "critic_target_tau": 0.01,
            "num_expl_steps": 2000,
            "update_every_steps": 2,
            "feature_dim": 50,
            "hidden_dim": 1024,
            "stddev_schedule": "linear(1.0,0.1,100000)",
            "stddev_clip": 0.3,
        }
    )

    @classmethod
    def compose(cls, task: str, preset: str) -> Settings:
        """Read them from cfgs/ for a task and a preset."""
        from hydra import compose, initialize_config_dir

        with initialize_config_dir(str(ROOT / "cfgs"), version_base="1.3"):
            cfg = compose("config", overrides=[f"task={task}", f"preset={preset}"])
        same = ("image_size", "frame_stack", "action_repeat", "batch_size", "num_train_frames", "replay_buffer_size", "lr")
        agent = {name: cfg.agent[name] for name in cls().agent}
        return cls(preset, num_workers=cfg.replay_buffer_num_workers, agent=agent, **{name: cfg[name] for name in same})

    @property
    def replay_bytes(self) -> int:
        """Bytes on disk when the replay is full, or the run over: each RGB frame once."""
        transitions = min(self.replay_buffer_size, self.num_train_frames // self.action_repeat)
        return transitions * 3 * self.image_size**2

    @property
    def shared_bytes(self) -> int:
        """Bytes of the batches that wait in shared memory."""
        observation = 3 * self.frame_stack * self.image_size**2
        return self.num_workers * _PREFETCH * self.batch_size * 2 * observation

    def hours(self, step_ms: float, update_ms: float) -> float:
        """Hours that a run takes, evaluations aside."""
        per_step = step_ms + update_ms / self.agent["update_every_steps"]
        return self.num_train_frames / self.action_repeat * per_step / 3.6e6


def versions() -> Iterator[Line]:
    """Python and packages against the bounds of pyproject.toml."""
    python = ".".join(map(str, sys.version_info[:3]))
    enough = sys.version_info >= (3, 11)
    yield Line("ok", "python", python) if enough else Line("fail", "python", python, ("install Python 3.11 or newer",))
    from packaging.requirements import Requirement

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wrong = 0
    for requirement in map(Requirement, project["dependencies"]):
        name, advice = requirement.name, (f'{sys.executable} -m pip install "{requirement}"', _INSTALL)
        version = _version(name) or _version(f"{name}-headless")  # OpenCV comes as either
        if version is None:
            yield Line("fail", name, "not installed", advice)
        elif not requirement.specifier.contains(version, prereleases=True):
            yield Line("fail", name, f"{version}, needed is {requirement.specifier}", advice)
        elif name in _SHOWN:
            yield Line("ok", name, version)
            continue
        else:
            continue
        wrong += 1
    if not wrong:
        yield Line("ok", "other packages", "all within their bounds")


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def encoder() -> Iterator[Line]:
    """Encode one picture with the ffmpeg that the videos use."""
    advice = ("unset IMAGEIO_FFMPEG_EXE",) if os.environ.get("IMAGEIO_FFMPEG_EXE") else ()
    advice += (f"{sys.executable} -m pip install --force-reinstall imageio-ffmpeg",)
    try:
        import imageio_ffmpeg

        command = [imageio_ffmpeg.get_ffmpeg_exe(), "-nostdin", "-f", "lavfi", "-i", "color=s=64x64", "-frames:v", "1"]
        command += ["-pix_fmt", "yuv420p", "-c:v", "libx264", "-threads", "1", "-f", "null", "-"]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=20, check=False)
    except (ImportError, OSError, RuntimeError, subprocess.SubprocessError) as error:
        yield Line("warn", "ffmpeg", f"does not run, so there are no videos: {error}", advice)
        return
    words = done.stderr.strip().splitlines() or ["no output"]
    if done.returncode:
        yield Line("warn", "ffmpeg", f"cannot encode H.264, so there are no videos: {words[-1]}", advice)
    else:
        yield Line("ok", "ffmpeg", f"{' '.join(words[0].split()[2:3])}, encodes H.264")


def has_nvidia() -> bool:
    """Return whether the machine shows an NVIDIA GPU, whatever torch makes of it."""
    return shutil.which("nvidia-smi") is not None or Path("/proc/driver/nvidia/version").exists()


def device() -> Iterator[Line]:
    """The device that device=auto takes."""
    import torch

    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            free, total = (size / 2**30 for size in torch.cuda.mem_get_info(index))
            native = torch.cuda.get_device_capability(index) >= (8, 0)
            text = f"cuda:{index}: {torch.cuda.get_device_name(index)}, {free:.1f} of {total:.1f} GiB free, bf16 {_bf16(native)}"
            advice = ("see who else uses it: nvidia-smi",)
            yield Line("ok", "device", text) if free >= 4 else Line("warn", "device", text, advice)
        return
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    model = next((row.partition(":")[2].strip() for row in flags.splitlines() if row.startswith("model name")), "CPU")
    native = any(flag in flags.split() for flag in ("avx512_bf16", "amx_bf16", "bf16"))
    text = f"CPU: {model}, {cores():g} cores, bf16 {_bf16(native)}"
    if not has_nvidia():
        yield Line("ok", "device", text)
    elif torch.version.cuda is None:
        version = torch.__version__.partition("+")[0]
        command = f"{sys.executable} -m pip install --force-reinstall torch=={version}"
        yield Line("warn", "device", f"{text}; there is a GPU, but torch {torch.__version__} is built without CUDA",
                   (f"{command} --index-url https://download.pytorch.org/whl/cu130",))  # fmt: skip
    else:
        yield Line("warn", "device", f"{text}; there is a GPU, but torch (CUDA {torch.version.cuda}) cannot use it",
                   ("compare the driver's CUDA version: nvidia-smi", "check CUDA_VISIBLE_DEVICES"))  # fmt: skip


def _bf16(native: bool) -> str:
    return "native" if native else "emulated (slow)"


def cores() -> float:
    """CPU cores that this process may use: its affinity and its container's quota."""
    count = float(len(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else float(os.cpu_count() or 1)
    with contextlib.suppress(OSError, ValueError):  # no cgroup, or "max": no quota
        quota, period = map(float, Path("/sys/fs/cgroup/cpu.max").read_text().split())
        count = min(count, quota / period)
    return count


def _draw(task: str, settings: Settings) -> None:
    """Print back end, renderer and milliseconds of a step as JSON; runs in a process of its own."""
    from drqv2 import envs
    from drqv2.errors import UserError

    try:
        found: dict[str, Any] = {"backend": envs.require_backend(), "renderer": envs.gl_renderer()}
        env = envs.make(task, settings.frame_stack, settings.action_repeat, seed=0, image_size=settings.image_size)
        env.reset()
        spec, times = env.action_spec(), []
        for _ in range(60):
            begin = time.perf_counter()
            time_step = env.step(spec.generate_value())
            times.append(1000 * (time.perf_counter() - begin))
        image = time_step.observation
        found |= {"ms": statistics.median(times[10:]), "actions": spec.shape[0], "blank": bool(image.min() == image.max())}
        env.close()
    except UserError as error:
        found = {"error": str(error)}
    except ImportError as error:
        found = {"error": f"{error}\n{_INSTALL}"}
    print(json.dumps(found), flush=True)
    os._exit(0)  # a GL driver that crashes while the process ends is nobody's concern here


def rendering(task: str, settings: Settings, found: dict[str, Any]) -> Iterator[Line]:
    """Draw in a process of its own, which a bad GL driver may crash; `found` takes ms and actions."""
    code = "import sys; from drqv2 import doctor as d; d._draw(sys.argv[1], d.Settings(**eval(sys.argv[2])))"
    command = [sys.executable, "-c", code, task, repr(vars(settings))]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        yield Line("fail", "renderer", "hangs", ("try another: MUJOCO_GL=osmesa (or egl) python -m drqv2.doctor",))
        return
    try:
        found |= json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        words = (done.stderr.strip().splitlines() or ["no message"])[-1]
        yield Line("fail", "renderer", f"the process that draws ended with status {done.returncode}: {words}",
                   ("try another: MUJOCO_GL=osmesa (or egl) python -m drqv2.doctor", _INSTALL))  # fmt: skip
        return
    if "error" in found:
        text, *advice = found["error"].splitlines()
        yield Line("fail", "renderer", text, tuple(advice))
        return
    name = f"MUJOCO_GL={found['backend']}, GL_RENDERER {found['renderer']}"
    if is_software(found["renderer"]):
        yield Line("warn", "renderer", f"{name}: software rendering, on the CPU", _gpu_rendering_advice())
    else:
        yield Line("ok", "renderer", name)
    if found["blank"]:
        yield Line("fail", "render + step", "the picture is of one colour",
                   ("try another: MUJOCO_GL=osmesa (or egl) python -m drqv2.doctor",))  # fmt: skip
    else:
        size = settings.image_size
        yield Line("ok", "render + step", f"{found['ms']:.1f} ms ({task}, {size}x{size}, {settings.action_repeat} frames)")


def is_software(renderer: str) -> bool:
    """Return whether a GL_RENDERER draws on the CPU."""
    return any(name in renderer.lower() for name in _SOFTWARE)


def _gpu_rendering_advice() -> tuple[str, ...]:
    if not has_nvidia():
        return ("without a GPU this is as it must be; on a GPU machine: MUJOCO_GL=egl python -m drqv2.doctor",)
    advice = []
    if not Path("/usr/share/glvnd/egl_vendor.d/10_nvidia.json").exists():
        advice.append("NVIDIA's EGL is not installed: sudo apt-get install libnvidia-gl-VERSION (VERSION: see nvidia-smi)")
        advice.append("in a container: docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=all ...")
    return (*advice, "then: MUJOCO_GL=egl python -m drqv2.doctor")


def update(settings: Settings, found: dict[str, Any]) -> Iterator[Line]:
    """Time updates of the agent on a random batch."""
    import torch

    from drqv2.agents.drqv2 import DrQV2Agent

    name = "cuda" if torch.cuda.is_available() else "cpu"
    size, batch, actions = settings.image_size, settings.batch_size, found.get("actions", 6)
    shape = (3 * settings.frame_stack, size, size)
    agent = DrQV2Agent(shape, (actions,), name, settings.lr, use_tb=True, **settings.agent)
    obs, next_obs = (torch.randint(0, 256, (batch, *shape), dtype=torch.uint8) for _ in range(2))
    sample = (obs, torch.rand(batch, actions) * 2 - 1, torch.rand(batch, 1), torch.full((batch, 1), 0.97), next_obs)
    times: list[float] = []
    # The first update warms up. A slow machine gets three in all, a fast one ten.
    while len(times) < 3 or (len(times) < 10 and sum(times) < 2000):
        begin = time.perf_counter()
        agent.update(iter([sample]), 0)
        if name == "cuda":
            torch.cuda.synchronize()
        times.append(1000 * (time.perf_counter() - begin))
    ms = statistics.median(times[1:])
    text = f"{ms:.1f} ms on {name} (preset={settings.preset}: batch {batch}, {size}x{size})"
    if "ms" not in found:
        yield Line("ok", "update", text)
        return
    hours = settings.hours(found["ms"], ms)
    text += f"; about {hours:.1f} hours for {settings.num_train_frames:,} frames"
    if hours <= _SLOW_RUN:
        yield Line("ok", "update", text)
    elif name == "cpu" and settings.preset == "paper":
        yield Line("warn", "update", f"{text}: too slow on a CPU", ("python train.py preset=cpu",))
    else:
        yield Line("warn", "update", text, ("a shorter run: python train.py num_train_frames=N", "a faster machine"))


def space(settings: Settings, folder: Path) -> Iterator[Line]:
    """Disk, memory and shared memory against what the replay needs."""
    place = next(path for path in (folder.resolve(), *folder.resolve().parents) if path.is_dir())
    elsewhere = "python train.py hydra.run.dir=/path/on/a/larger/disk"
    need, free = settings.replay_bytes, shutil.disk_usage(place).free
    text = f"{_gb(free)} free at {place}, a run's replay grows to {_gb(need)} (preset={settings.preset})"
    if not os.access(place, os.W_OK):
        yield Line("fail", "disk", f"{place} cannot be written to", (elsewhere,))
    elif free < need + 2e8:
        fits = int(max(free - 1e9, 0) // (3 * settings.image_size**2) // 1000 * 1000)
        smaller = (f"python train.py replay_buffer_size={fits}",) if fits >= 1000 else ()
        yield Line("fail", "disk", text, (elsewhere, *smaller))
    elif free < need + 2e9:
        yield Line("warn", "disk", f"{text}: little is left for snapshots and videos", (elsewhere,))
    else:
        yield Line("ok", "disk", text)

    total, available = memory()
    text = f"{_gb(available)} of {_gb(total)} available"
    least = 2e9 + 2 * settings.shared_bytes
    if available < least:
        yield Line("warn", "memory", f"{text}; a run takes about {_gb(least)}",
                   ("close other programs", "python train.py preset=cpu", "python train.py batch_size=64"))  # fmt: skip
    elif available < need:
        yield Line("warn", "memory", f"{text}: less than the replay, which is then read from the disk again and again",
                   ("put the run on a local SSD: python train.py hydra.run.dir=/path/on/it",))  # fmt: skip
    else:
        yield Line("ok", "memory", text)

    if Path("/dev/shm").is_dir():
        free, need = shutil.disk_usage("/dev/shm").free, settings.shared_bytes
        text = f"{_gb(free)} free in /dev/shm, batches on their way take {_gb(need)}"
        advice = ("in a container: docker run --shm-size=2g ...", "python train.py replay_buffer_num_workers=0")
        yield Line("ok", "shared memory", text) if free > 1.2 * need else Line("fail", "shared memory", text, advice)


def memory() -> tuple[float, float]:
    """Bytes of memory, and bytes of it available, to this machine or container."""
    total = available = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    if Path("/proc/meminfo").exists():
        rows = dict(row.split(":") for row in Path("/proc/meminfo").read_text().splitlines())
        available = 1024.0 * int(rows["MemAvailable"].split()[0])
    with contextlib.suppress(OSError, ValueError):  # no cgroup, or "max": no limit
        limit = float(Path("/sys/fs/cgroup/memory.max").read_text())
        used = float(Path("/sys/fs/cgroup/memory.current").read_text())
        total, available = min(total, limit), min(available, limit - used)
    return total, available


def _gb(size: float) -> str:
    return f"{size / 1e9:.1f} GB"


class Report:
    """Prints findings as they come and remembers the worst."""

    def __init__(self) -> None:
        self.failed = False

    def add(self, name: str, check: Callable[[], Iterable[Line]]) -> None:
        """Run a check; one that breaks is a finding too."""
        try:
            for line in check():
                self._print(line)
        except Exception as error:  # a broken installation breaks in its own ways, and naming that is the purpose here
            words = (str(error).splitlines() or ["no message"])[0]
            self._print(Line("fail", name, f"{type(error).__name__}: {words}", (_INSTALL,)))

    def _print(self, line: Line) -> None:
        self.failed |= line.status == "fail"
        print(f"{line.status:<5} {line.name:<15} {line.text}", flush=True)
        for advice in line.advice:
            print(f"{'':<21} -> {advice}", flush=True)


def main(argv: list[str] | None = None) -> int:
    """Examine the machine; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m drqv2.doctor", description="Is this machine fit to train?")
    parser.add_argument("--task", default="cartpole_balance_sparse", help="task that a run would learn")
    parser.add_argument("--dir", type=Path, default=Path("exp_local"), help="where runs would lie")
    args = parser.parse_args(argv)

    report, found = Report(), {}
    report.add("versions", versions)
    report.add("ffmpeg", encoder)
    report.add("device", device)

    paper = chosen = Settings()

    def settings() -> Iterator[Line]:
        nonlocal paper, chosen
        import torch

        paper = chosen = Settings.compose(args.task, "paper")
        if not torch.cuda.is_available():
            chosen = Settings.compose(args.task, "cpu")
        return iter(())

    report.add("settings", settings)
    report.add("renderer", lambda: rendering(args.task, chosen, found))
    report.add("update", lambda: update(paper, found))
    if chosen is not paper:
        report.add("update", lambda: update(chosen, found))
    report.add("space", lambda: space(chosen, args.dir))
    print("\nsomething would stop a run: see fail above" if report.failed else "\nready: python train.py", flush=True)
    return int(report.failed)


if __name__ == "__main__":
    sys.exit(main())
