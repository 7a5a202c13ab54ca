"""Evaluate a trained agent: print a table of returns and record a video.

python eval.py RUN_DIR                                # ten episodes with the run's newest snapshot
python eval.py RUN_DIR episodes=20 film=best          # video of the best of twenty episodes
python eval.py RUN_DIR snapshot=weights_500000.pt     # the weights of a milestone
python eval.py RUN_DIR task=walker_run camera=1 render_size=480 fps=30
python eval.py policy.safetensors                     # weights written by python -m drqv2.snapshot export
python eval.py RUN_DIR live=true                      # show the episodes in a window

The episodes do not occur in training and are the same for every snapshot of a run, so that you can compare snapshots.
"""

from __future__ import annotations

if __name__ == "__main__":
    from drqv2.system.machine import limit_openmp_spinning

    limit_openmp_spinning()  # before torch is loaded

    from drqv2.system.signals import exit_quietly_on_ctrl_c

    exit_quietly_on_ctrl_c()

import itertools
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
import torch
from omegaconf import DictConfig

from drqv2 import envs, utils
from drqv2.agents.acting import evaluation_policy
from drqv2.config.checks import validate
from drqv2.config.kinds import Bool, Device, EvenInt, Float, Folder, Int, Key, Text
from drqv2.errors import UserError
from drqv2.evaluation import overlay
from drqv2.evaluation import trained_agent as trained
from drqv2.evaluation.episodes import EpisodeResult, play
from drqv2.evaluation.statistics import interval, iqm, mean
from drqv2.launch.arguments import run_tool
from drqv2.run import factory
from drqv2.run.environments import make_env
from drqv2.system import files
from video import Mp4

_EVALUATION = 2**31  # index of this evaluation; those during training count from 0
_FILM = "0,1,2,3"
Policy = Callable[[Any, int], np.ndarray]  # time step, number of its episode -> action

KEYS = {
    Key("episodes", Int(1, 100_000), "Number of episodes.", "episodes"): 10,
    Key("snapshot", Text(), "File in the run's directory, or a path.", null="the newest snapshot"): None,
    Key("task", Text(), "Another task with the same shapes.", null="the run's task"): None,
    Key("seed", Int(0, 2**32 - 1), "Seed of the episodes.", null="the run's seed"): None,
    Key("film", Text(), "Episodes to record side by side: indices (0,3,5), best, worst or none."): _FILM,
    Key("render_size", EvenInt(16, 2048), "Height and width of each episode's frames.", "pixels"): 256,
    Key("camera", Text(), "Camera to record with, index or name.", null="the task's default"): None,
    Key("fps", Float(0.1, 1000), "Frames per second of the video.", null="real time"): None,
    Key("live", Bool(), "Show the recorded episodes in a window instead of writing a video."): False,
    Key("num_envs", Int(1, 256), "Number of parallel environments.", "environments"): 1,
    Key("device", Device(), "The agent's device."): "auto",
    Key("agent_dir", Folder(), "Directory of the agent's file.", null="as in training"): None,
    Key("trust", Bool(), "Run code named by a file of weights from outside the run's directory."): False,
    Key("out", Text(), "Directory for the video and the returns.", null="eval/ in the run's directory"): None,
}


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line described in the module's docstring."""
    run_tool(evaluate, __doc__, KEYS, sys.argv[1:] if argv is None else argv)


def evaluate(sources: Sequence[str], values: dict[str, Any]) -> None:
    """Play the episodes, print the table, and write or show the video.

    Args:
        sources: a run directory or a file of weights.
        values: of all KEYS.

    Raises:
        UserError: there are no weights, or they do not fit the task.
    """
    if len(sources) != 1:
        raise UserError("give one run directory or one file of weights: python eval.py RUN_DIR [key=value ...]")
    source, args = Path(sources[0]), SimpleNamespace(**values)
    envs.choose_backend()  # before an environment's module imports dm_control
    chosen = _episodes_to_film(args.film, args.episodes)
    if args.live and chosen == []:
        raise UserError("live=true film=none: nothing to show; choose episodes, say film=0,1, or omit live=true")
    if args.live:
        # Without a display, Qt aborts the process.
        trial = [sys.executable, "-c", "import cv2; cv2.namedWindow('drqv2')"]
        if subprocess.run(trial, capture_output=True, timeout=60).returncode:
            raise UserError("live=true: there is no display here; omit it to write a video instead")
    path = trained.find(source, args.snapshot)
    cfg, weights, frame = trained.read(path)
    if not args.trust and not (source.is_dir() and path.resolve().is_relative_to(source.resolve())):
        trained.reject_foreign_code(cfg, path)
    _override(cfg, args)
    folder = Path(args.out) if args.out else (source if source.is_dir() else source.parent) / "eval"
    name = f"{path.stem}_{frame}_{re.sub(r'[^A-Za-z0-9_.-]+', '_', cfg.task_name)}"
    if not args.live:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as e:
            raise files.cannot_write(folder, e, "give out=DIR") from e
    camera = int(args.camera) if re.fullmatch(r"-?[0-9]{1,9}", args.camera or "") else args.camera
    act, fps, results = _play(cfg, weights, path, frame, args.episodes, camera)
    returns = [result.total for result in results]
    if not args.live:
        summary = {"weights": str(path), "frame": frame, "task": cfg.task_name, "seed": cfg.seed, "returns": returns}
        try:
            files.write_atomically(folder / f"{name}.json", json.dumps(summary, indent=1).encode())
        except OSError as e:
            raise files.cannot_write(folder / f"{name}.json", e, "give out=DIR") from e
    print(f"{cfg.task_name}: {path}, frame {frame:,}, {args.episodes} episodes, seed {cfg.seed}")
    print("\n".join(table(returns, [result.steps * cfg.action_repeat for result in results])), flush=True)
    if chosen is None:
        chosen = [int(np.argmax(returns) if args.film == "best" else np.argmin(returns))]
    if chosen:
        frames = _film(cfg, act, chosen, args.render_size, camera)
        if args.live:
            _show(frames, args.fps or fps)
        else:
            _write(frames, args.fps or fps, folder / f"{name}.mp4")


def _override(cfg: DictConfig, args: SimpleNamespace) -> None:
    """Change a run's configuration for evaluation and resolve it on this machine."""
    cfg.device, cfg.compile, cfg.num_eval_envs, cfg.overlap = args.device, "auto", args.num_envs, False
    cfg.replay_buffer_size = 1000  # unused, but checked against the episode length
    if "device" in cfg.agent:
        cfg.agent.device = args.device
    if args.agent_dir is not None:
        cfg.agent_dir = args.agent_dir
    if args.task is not None:
        trained.override_task(cfg, args.task)
    if args.seed is not None:
        cfg.seed = args.seed
    validate(cfg)
    factory.prepare_machine(cfg)


def _play(
    cfg: DictConfig, weights: dict[str, Any], path: Path, frame: int, episodes: int, camera: int | str | None
) -> tuple[Policy, float, list[EpisodeResult]]:
    """Return the policy, the frame rate of real time, and return and length in agent steps of each episode."""
    envs = [make_env(cfg, utils.EVAL_ENV, i) for i in range(cfg.num_eval_envs)]
    try:
        agent = trained.agent_with(cfg, envs[0], weights, path)
        policy = evaluation_policy(agent, envs[0].action_spec().shape, frame // cfg.action_repeat)
        act = torch.no_grad()(policy)
        if camera is not None:  # report a wrong camera now, not after all episodes
            envs[0].call("begin", _EVALUATION, 0)
            envs[0].call("render", 16, 16, camera)
        fps = 1 / envs[0].step_seconds if envs[0].step_seconds else 20.0
        return act, fps, play(envs, _EVALUATION, episodes, act, lambda *_: None)
    finally:
        for env in envs:
            env.close()


def table(returns: Sequence[float], frames: Sequence[int]) -> list[str]:
    """Return the lines of the table: one per episode, then mean and IQM with their intervals, minimum and maximum."""
    values = np.array(returns)
    lines = [f"{'episode':>8} {'return':>10} {'frames':>8}"]
    lines += [f"{i:>8} {value:>10.1f} {n:>8}" for i, (value, n) in enumerate(zip(returns, frames, strict=True))]
    for name, statistic in (("mean", mean), ("IQM", iqm)):
        low, high = interval(values, statistic)
        lines.append(f"{name:>8} {statistic(values):>10.1f}   95 % bootstrap interval {low:.1f} to {high:.1f}")
    return [*lines, f"{'minimum':>8} {values.min():>10.1f}", f"{'maximum':>8} {values.max():>10.1f}"]


def _episodes_to_film(film: str, episodes: int) -> list[int] | None:
    """Parse `film`; None means that the returns decide."""
    if film in ("best", "worst"):
        return None
    if film == "none":
        return []
    try:
        indices = [int(text) for text in film.strip("[]").split(",")]
    except ValueError:
        raise UserError(f"film={film}: must be indices of episodes such as 0,3,5, or best, worst, none") from None
    if film == _FILM:
        indices = [i for i in indices if i < episodes]
    if not all(0 <= i < episodes for i in indices) or len(indices) > 16:
        raise UserError(f"film={film}: must be up to 16 indices from 0 to {episodes - 1} (episodes={episodes})")
    return indices


def _film(
    cfg: DictConfig, act: Policy, episodes: Sequence[int], size: int, camera: int | str | None
) -> Iterator[np.ndarray]:
    """Yield the frames, uint8 [H, W, 3], of episodes side by side."""
    cfg.num_eval_envs = 1  # rendering works only in this process
    envs = [make_env(cfg, utils.EVAL_ENV, 0) for _ in episodes]
    try:
        time_steps = [env.call("begin", _EVALUATION, e) for env, e in zip(envs, episodes, strict=True)]
        totals, counts = [0.0] * len(episodes), [0] * len(episodes)

        def render(i: int) -> np.ndarray:
            frame = envs[i].call("render", size, size, camera)
            return overlay.label(frame, episodes[i], totals[i], counts[i], time_steps[i].action)

        frames = [render(i) for i in range(len(episodes))]
        yield overlay.grid(frames)
        while running := [i for i, time_step in enumerate(time_steps) if not time_step.last()]:
            for i in running:
                time_steps[i] = envs[i].call("step", act(time_steps[i], episodes[i]))
                totals[i] += time_steps[i].reward
                counts[i] += 1
                frames[i] = render(i)
            yield overlay.grid(frames)
    finally:
        for env in envs:
            env.close()


def _write(frames: Iterator[np.ndarray], fps: float, path: Path) -> None:
    first = next(frames)
    try:
        with closing(Mp4(path.parent, fps, first.shape)) as video:
            for frame in itertools.chain([first], frames):
                video.write(frame)
            video.finish(path)
    except (OSError, RuntimeError) as e:
        raise UserError(f"{path}: the video cannot be written ({e})") from e
    print(f"video: {path}")


def _show(frames: Iterator[np.ndarray], fps: float) -> None:
    title = "drqv2 (press q to quit)"
    os.environ.setdefault("QT_LOGGING_RULES", "default.warning=false")  # OpenCV's Qt warns about missing fonts
    try:
        cv2.namedWindow(title, cv2.WINDOW_AUTOSIZE | cv2.WINDOW_GUI_NORMAL)
        due = time.perf_counter()
        for frame in frames:
            cv2.imshow(title, cv2.cvtColor(frame, cv2.COLOR_RGB2BGR))
            due = max(due + 1 / fps, time.perf_counter())
            if cv2.waitKey(max(1, round(1000 * (due - time.perf_counter())))) in (ord("q"), 27):
                break
            if cv2.getWindowProperty(title, cv2.WND_PROP_VISIBLE) < 1:
                break
    except cv2.error as e:
        raise UserError(f"live=true: no window can be opened here ({str(e).strip().splitlines()[-1]})") from e
    finally:
        cv2.destroyAllWindows()


if __name__ == "__main__":
    main()
