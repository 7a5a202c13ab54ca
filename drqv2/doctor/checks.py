"""`python -m drqv2.doctor`: what this machine has, what is wrong with it, and the command that fixes each problem.

Exit code 0 if training would work (perhaps slowly), 1 if it would not.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import sys
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drqv2.doctor import measure
from drqv2.system import machine

ROOT = Path(__file__).resolve().parents[2]
_SHOWN = ("torch", "mujoco", "dm-control", "hydra-core", "numpy")
_INSTALL = "make setup    (or: pip install -e .)"
_DOCTOR = "python -m drqv2.doctor"
_PIP = f"{sys.executable} -m pip install"
_MAX_HOURS = 24.0  # warn about longer runs
_OTHER_FILES = 2e9  # bytes of a run's snapshots, videos and logs
_MIN_MEMORY = 4e9  # bytes for the learner, the workers and both environments


@dataclass(frozen=True)
class Finding:
    """One finding: `status` is "ok", "warn" or "fail"; `advice` says what to do, best first."""

    status: str
    name: str
    text: str
    advice: tuple[str, ...] = ()


def compose(task: str, preset: str) -> dict[str, Any]:
    """Return the configuration of a run."""
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    with initialize_config_dir(str(ROOT / "cfgs"), version_base="1.3"):
        cfg = compose("config", overrides=[f"task={task}", f"preset={preset}"])
    return {**OmegaConf.to_container(cfg, resolve=True), "preset": preset}  # type: ignore[dict-item]


def replay_bytes(cfg: dict[str, Any]) -> int:
    """Return the bytes on disk of a full replay, or of the replay at the run's end: each RGB frame is stored once."""
    transitions = min(cfg["replay_buffer_size"], cfg["num_train_frames"] // cfg["action_repeat"])
    return transitions * 3 * cfg["image_size"] ** 2


def versions() -> Iterator[Finding]:
    """Check Python and the packages against the bounds in pyproject.toml."""
    yield Finding("ok", "python", ".".join(map(str, sys.version_info[:3])))
    from packaging.requirements import Requirement

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wrong = 0
    for requirement in map(Requirement, project["dependencies"]):
        name, advice = requirement.name, (f'{_PIP} "{requirement}"', _INSTALL)
        version = _version(name) or _version(f"{name}-headless")  # OpenCV comes as either
        if version is None or not requirement.specifier.contains(version, prereleases=True):
            wrong += 1
            text = f"{version}, but {requirement.specifier} is required" if version else "not installed"
            yield Finding("fail", name, text, advice)
        elif name in _SHOWN:
            yield Finding("ok", name, version)
    if not wrong:
        yield Finding("ok", "other packages", "all within their bounds")


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def encoder() -> Iterator[Finding]:
    """Check the ffmpeg that encodes the videos."""
    try:
        yield Finding("ok", "ffmpeg", f"{measure.encode()}, encodes H.264")
    except OSError as error:
        chosen = ("unset IMAGEIO_FFMPEG_EXE",) if os.environ.get("IMAGEIO_FFMPEG_EXE") else ()
        advice = (*chosen, f"{_PIP} --force-reinstall imageio-ffmpeg")
        yield Finding("warn", "ffmpeg", f"cannot encode H.264, so runs will have no videos: {error}", advice)


def device() -> Iterator[Finding]:
    """Check the device that device=auto selects."""
    import torch

    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        free, total = (size / 2**30 for size in torch.cuda.mem_get_info(index))
        bf16 = _bf16(torch.cuda.get_device_capability(index) >= (8, 0))
        text = f"cuda:{index} {torch.cuda.get_device_name(index)}, {free:.1f} of {total:.1f} GiB free, bf16 {bf16}"
        advice = ("who else uses it: nvidia-smi", "another: python train.py device=cuda:N")
        yield Finding("warn", "device", text, advice) if free < 4 else Finding("ok", "device", text)
    name, native = machine.processor()
    text = f"CPU {name}, {machine.cores():g} cores, bf16 {_bf16(native)}"
    if torch.cuda.is_available() or not machine.has_nvidia():
        yield Finding("ok", "device", text)
    elif torch.version.cuda is None:
        version = torch.__version__.partition("+")[0]
        build = f"{_PIP} --force-reinstall torch=={version} --index-url https://download.pytorch.org/whl/cu130"
        yield Finding("warn", "device", f"{text}; there is a GPU, but torch is built without CUDA", (build,))
    else:
        text += f"; there is a GPU, but torch (CUDA {torch.version.cuda}) cannot use it"
        advice = ("compare the driver's CUDA version: nvidia-smi", "unset CUDA_VISIBLE_DEVICES")
        yield Finding("warn", "device", text, advice)


def load() -> Iterator[Finding]:
    """Check whether other processes use the CPU."""
    running, count = os.getloadavg()[0], machine.cores()
    if running > count:
        text = f"load {running:.1f} on {count:g} cores: the times below are longer than on an idle machine"
        yield Finding("warn", "load", text, ("to see which processes use them: top",))


def _bf16(native: bool) -> str:
    return "native" if native else "emulated (slow)"


def rendering(cfg: dict[str, Any], found: dict[str, Any]) -> Iterator[Finding]:
    """Check the renderer and measure its speed; add the measurements to `found`."""
    found |= measure.rendering(cfg["task_name"], cfg["frame_stack"], cfg["action_repeat"], cfg["image_size"])
    another = f"try another: MUJOCO_GL={'osmesa' if os.environ.get('MUJOCO_GL') == 'egl' else 'egl'} {_DOCTOR}"
    if "error" in found:
        text, *advice = found["error"].splitlines()
        yield Finding("fail", "renderer", text, (*advice, _INSTALL) if found["install"] else (*advice, another))
        return
    text = f"MUJOCO_GL={found['backend']}, GL_RENDERER {found['renderer']}"
    if machine.is_software(found["renderer"]):
        yield Finding("warn", "renderer", f"{text}: software rendering, on the CPU", _gpu_rendering())
    else:
        yield Finding("ok", "renderer", text)
    text = f"{found['ms']:.1f} ms ({cfg['task_name']}, {_size(cfg)}, {cfg['action_repeat']} frames of physics)"
    if found["blank"]:
        yield Finding("fail", "render + step", f"{text}: the image has only one colour", (another,))
    else:
        yield Finding("ok", "render + step", text)


def _size(cfg: dict[str, Any]) -> str:
    return f"{cfg['image_size']}x{cfg['image_size']}"


def _gpu_rendering() -> tuple[str, ...]:
    if not machine.has_nvidia():
        return (f"expected without a GPU; on a machine with one: MUJOCO_GL=egl {_DOCTOR}",)
    missing = (
        "NVIDIA's EGL is missing: sudo apt-get install libnvidia-gl-VERSION (the driver's, see nvidia-smi)",
        "in a container: docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=all ...",
    )
    return (*(() if machine.has_nvidia_egl() else missing), f"then: MUJOCO_GL=egl {_DOCTOR}")


def update(cfg: dict[str, Any], found: dict[str, Any]) -> Iterator[Finding]:
    """Measure the time of an update and estimate the duration of a run."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    ms = measure.update_ms(cfg, device, found.get("actions", 6))
    text = f"{ms:.1f} ms on {device} (preset={cfg['preset']}: batch {cfg['batch_size']}, {_size(cfg)})"
    if "ms" not in found:
        yield Finding("ok", "update", text)
        return
    step_ms = found["ms"] + ms / cfg["agent"]["update_every_steps"]
    hours = cfg["num_train_frames"] / cfg["action_repeat"] * step_ms / 3.6e6
    duration = f"{hours:.1f} hours" if hours >= 1 else f"{60 * hours:.0f} minutes"
    text += f": {cfg['num_train_frames']:,} frames take about {duration}"
    if hours <= _MAX_HOURS:
        yield Finding("ok", "update", text)
    elif device == "cpu" and cfg["preset"] == "paper":
        advice = f"python train.py task={cfg['task_name']} preset=cpu"
        yield Finding("warn", "update", f"{text}, slow on a CPU", (advice,))
    else:
        yield Finding("warn", "update", text, ("use a (faster) GPU, or: python train.py num_train_frames=N",))


def space(cfg: dict[str, Any], folder: Path) -> Iterator[Finding]:
    """Check that disk and memory suffice for the replay."""
    place = next(path for path in (folder.resolve(), *folder.resolve().parents) if path.is_dir())
    elsewhere = "python train.py hydra.run.dir=/path/on/a/larger/disk"
    need, free = replay_bytes(cfg), shutil.disk_usage(place).free
    text = f"{_gb(free)} free at {place}, the replay grows to {_gb(need)} (preset={cfg['preset']})"
    if not os.access(place, os.W_OK):
        yield Finding("fail", "disk", f"{place} cannot be written to", (elsewhere,))
    elif free < need:
        yield Finding("fail", "disk", text, (elsewhere, "python train.py replay_buffer_size=N, with a smaller N"))
    elif free < need + _OTHER_FILES:
        yield Finding("warn", "disk", f"{text}: little is left for snapshots and videos", (elsewhere,))
    else:
        yield Finding("ok", "disk", text)

    total, available = machine.memory()
    text = f"{_gb(available)} of {_gb(total)} available"
    if available < _MIN_MEMORY:
        yield Finding("warn", "memory", f"{text}, {_gb(_MIN_MEMORY)} recommended", ("python train.py preset=cpu",))
    elif available < need:
        text += ", less than the replay, which will be read from disk repeatedly"
        yield Finding("warn", "memory", text, ("on a local SSD: python train.py hydra.run.dir=/path/on/it",))
    else:
        yield Finding("ok", "memory", text)


def _gb(size: float) -> str:
    return f"{size / 1e9:.1f} GB"


class Report:
    """Prints findings as they arrive and records whether any check failed."""

    def __init__(self) -> None:
        self.failed = False

    def add(self, name: str, lines: Iterable[Finding]) -> None:
        """Print the findings of a check. A check that raises counts as failed."""
        for line in _guarded(name, lines):
            self.failed |= line.status == "fail"
            print(f"{line.status:<5} {line.name:<15} {line.text}", flush=True)
            for advice in line.advice:
                print(f"{'':<21} -> {advice}", flush=True)


def _guarded(name: str, lines: Iterable[Finding]) -> Iterator[Finding]:
    try:
        yield from lines
    except Exception as error:  # a broken installation raises anything, and should be reported
        message = (str(error).splitlines() or [""])[0]
        yield Finding("fail", name, f"{type(error).__name__}: {message}", (_INSTALL,))


def settings(task: str, cfgs: list[dict[str, Any]]) -> Iterator[Finding]:
    """Append the paper preset to `cfgs`, and, without a GPU, the cpu preset."""
    import torch

    from drqv2.config.schema import tasks
    from drqv2.errors import nearest

    if task in tasks():
        cfgs += [compose(task, preset) for preset in ("paper", "cpu")[: 1 if torch.cuda.is_available() else 2]]
    else:
        near = nearest(task, tasks()) or tasks()
        yield Finding("fail", "task", f"there is no task {task!r}", (f"{_DOCTOR} --task {'|'.join(near)}",))


def run_checks(report: Report, task: str, folder: Path) -> str:
    """Run all checks; return the command to start training."""
    for check in (versions, encoder, device, load):
        report.add(check.__name__, check())
    cfgs: list[dict[str, Any]] = []
    report.add("settings", settings(task, cfgs))
    if not cfgs:
        return ""
    found: dict[str, Any] = {}
    report.add("renderer", rendering(cfgs[-1], found))
    for cfg in cfgs:
        report.add("update", update(cfg, found))
    report.add("space", space(cfgs[-1], folder))
    return f"python train.py task={task} preset={cfgs[-1]['preset']}"
