"""Play episodes with a trained agent: a table of returns, and a video.

python eval.py RUN_DIR                                # ten episodes of a run's newest snapshot
python eval.py RUN_DIR episodes=20 film=best          # the best of twenty on video
python eval.py RUN_DIR snapshot=weights_500000.pt     # a milestone's weights
python eval.py RUN_DIR task=walker_run camera=1 render_size=480 fps=30
python eval.py policy.safetensors                     # weights written by python -m drqv2.snapshot export
python eval.py RUN_DIR live=true                      # in a window

Episodes are such as training never saw, the same for every snapshot of a run, so that snapshots can be compared.
"""

from __future__ import annotations

if __name__ == "__main__":
    from drqv2.system.machine import calm_openmp

    calm_openmp()  # before torch is loaded

    from drqv2.system.signals import leave_at_ctrl_c

    leave_at_ctrl_c()

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from omegaconf import DictConfig

from drqv2 import envs, utils
from drqv2.agents.acting import choose_actions
from drqv2.config.checks import settle
from drqv2.config.schema import Key
from drqv2.errors import UserError
from drqv2.evaluation import overlay
from drqv2.evaluation import trained_agent as trained
from drqv2.evaluation.episodes import play
from drqv2.evaluation.statistics import interval, iqm, mean
from drqv2.launch.arguments import run_tool
from drqv2.run import factory as parts
from drqv2.system import files
from video import Mp4

_EVALUATION = 2**31  # number of this evaluation: training's are counted from 0
_FILM = "0,1,2,3"

KEYS = {
    Key("episodes", "int", "Episodes to play.", "episodes", 1, 100_000): 10,
    Key("snapshot", "text", "File in the run's directory, or its path.", null="the newest snapshot"): None,
    Key("task", "text", "Another task than the run's, of the same shapes.", null="the run's own"): None,
    Key("seed", "int", "Seed of the episodes.", "", 0, 2**32 - 1, null="the run's own"): None,
    Key("film", "text", "Episodes to film side by side: numbers (0,3,5), best, worst or none."): _FILM,
    Key("render_size", "int", "Side of one picture.", "pixels", 16, 2048, even=True): 256,
    Key("camera", "text", "Camera that films, number or name.", null="the task's own"): None,
    Key("fps", "float", "Pictures a second of playing time.", "", 0.1, 1000, null="real time"): None,
    Key("live", "bool", "Show the filmed episodes in a window, instead of writing a video."): False,
    Key("num_envs", "int", "Environments that play side by side.", "environments", 1, 256): 1,
    Key("device", "device", "Where the agent lives."): "auto",
    Key("agent_dir", "folder", "Directory with the agent's file.", null="as in training"): None,
    Key("trust", "bool", "Run code that a file of weights names which is not in the run's directory."): False,
    Key("out", "text", "Where video and returns go.", null="eval/ in the run's directory"): None,
}


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line that is described at the head of this module."""

    def run(sources: list[str], args: dict[str, Any]) -> None:
        if len(sources) != 1:
            raise UserError("give one run directory or one file of weights: python eval.py RUN_DIR [key=value ...]")
        evaluate(Path(sources[0]), **args)

    run_tool(run, __doc__, KEYS, sys.argv[1:] if argv is None else argv)


def evaluate(
    source: Path,
    *,
    episodes: int,
    snapshot: str | None,
    task: str | None,
    seed: int | None,
    film: str,
    render_size: int,
    camera: str | None,
    fps: float | None,
    live: bool,
    num_envs: int,
    device: str,
    agent_dir: str | None,
    trust: bool,
    out: str | None,
) -> None:
    """Play, print the table, write or show the video; see KEYS.

    Raises:
        UserError: there are no weights, or they do not fit the task.
    """
    envs.choose_backend()  # before an environment's own module imports dm_control
    chosen = _numbers(film, episodes)
    if live:
        _check_window(chosen)
    path, (cfg, weights, frame) = trained.read_first(trained.find(source, snapshot))
    if not trust and not (source.is_dir() and path.resolve().is_relative_to(source.resolve())):
        trained.refuse_foreign_code(cfg, path)
    cfg.device, cfg.compile, cfg.num_eval_envs, cfg.overlap = device, "auto", num_envs, False
    cfg.replay_buffer_size = 1000  # nothing is replayed; what is checked is that an episode would fit
    if "device" in cfg.agent:
        cfg.agent.device = device
    if agent_dir is not None:
        cfg.agent_dir = agent_dir
    if task is not None:
        trained.take_task(cfg, task)
    if seed is not None:
        cfg.seed = seed
    settle(cfg)
    parts.settle_machine(cfg)
    folder = Path(out) if out else (source if source.is_dir() else source.parent) / "eval"
    name = f"{path.stem}_{frame}_{re.sub(r'[^A-Za-z0-9_.-]+', '_', cfg.task_name)}"
    if not live:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as e:
            raise UserError(f"{folder}: cannot be made ({e.strerror}); give out=DIR") from e
    eye = int(camera) if camera is not None and re.fullmatch(r"-?\d{1,9}", camera) else camera

    players = [parts.make_env(cfg, utils.EVAL_ENV, i) for i in range(num_envs)]
    try:
        agent = trained.agent_with(cfg, players[0], weights, path)
        if eye is not None:  # a wrong one is told now, not after all the episodes
            players[0].call("begin", _EVALUATION, 0)
            players[0].call("render", 16, 16, eye)
        step = frame // cfg.action_repeat

        def act(obs: np.ndarray) -> np.ndarray:
            with torch.no_grad():
                return choose_actions(agent, [obs], step, eval_mode=True)[0]

        results = play(players, _EVALUATION, episodes, act, lambda *_: None)
    finally:
        for env in players:
            env.close()
    returns = [total for total, _ in results]
    if not live:
        about = {"weights": str(path), "frame": frame, "task": cfg.task_name, "seed": cfg.seed, "returns": returns}
        try:
            files.write_atomically(folder / f"{name}.json", json.dumps(about, indent=1).encode())
        except OSError as e:
            raise files.cannot_write(folder / f"{name}.json", e, "give out=DIR") from e
    print(f"{cfg.task_name}: {path}, frame {frame:,}, {episodes} episodes, seed {cfg.seed}")
    print("\n".join(table(returns, [steps * cfg.action_repeat for _, steps in results])), flush=True)
    if chosen is None:
        chosen = [int(np.argmax(returns) if film == "best" else np.argmin(returns))]
    if chosen:
        moving = _film(cfg, act, chosen, render_size, eye)
        real_time = next(moving)
        if live:
            _show(moving, fps or real_time)
        else:
            _write(moving, fps or real_time, folder / f"{name}.mp4")


def table(returns: Sequence[float], frames: Sequence[int]) -> list[str]:
    """Return lines: a row for each episode, then mean and interquartile mean with their intervals, and the extremes."""
    values = np.array(returns)
    lines = [f"{'episode':>8} {'return':>10} {'frames':>8}"]
    lines += [f"{i:>8} {value:>10.1f} {n:>8}" for i, (value, n) in enumerate(zip(returns, frames, strict=True))]
    for name, figure in (("mean", mean), ("IQM", iqm)):
        low, high = interval(values, figure)
        lines.append(f"{name:>8} {figure(values):>10.1f}   95 % bootstrap interval {low:.1f} to {high:.1f}")
    return [*lines, f"{'minimum':>8} {values.min():>10.1f}", f"{'maximum':>8} {values.max():>10.1f}"]


def _numbers(film: str, episodes: int) -> list[int] | None:
    """Return the episodes to film; None where the returns decide."""
    if film in ("best", "worst"):
        return None
    if film == "none":
        return []
    try:
        numbers = [int(word) for word in film.strip("[]").split(",")]
    except ValueError:
        raise UserError(f"film={film}: must be numbers of episodes such as 0,3,5, or best, worst, none") from None
    if film == _FILM:
        numbers = [n for n in numbers if n < episodes]
    if not all(0 <= n < episodes for n in numbers) or len(numbers) > 16:
        raise UserError(
            f"film={film}: must be up to 16 numbers from 0 to {episodes - 1}; there are {episodes} episodes"
        )
    return numbers


def _film(cfg: DictConfig, act: Any, episodes: Sequence[int], size: int, eye: int | str | None) -> Iterator[Any]:
    """Yield the pictures a second of real time, then the pictures, uint8 [H, W, 3], of episodes played side by side."""
    cfg.num_eval_envs = 1  # in this process, which alone can film
    players = [parts.make_env(cfg, utils.EVAL_ENV, 0) for _ in episodes]
    try:
        seconds = players[0].step_seconds
        yield 1 / seconds if seconds else 20.0
        steps = [env.call("begin", _EVALUATION, e) for env, e in zip(players, episodes, strict=True)]
        totals, counts = [0.0] * len(episodes), [0] * len(episodes)

        def picture(i: int) -> np.ndarray:
            seen = players[i].call("render", size, size, eye)
            return overlay.label(seen, episodes[i], totals[i], counts[i], steps[i].action)

        pictures = [picture(i) for i in range(len(episodes))]
        yield overlay.grid(pictures)
        while going := [i for i, step in enumerate(steps) if not step.last()]:
            for i in going:
                steps[i] = players[i].call("step", act(steps[i].observation))
                totals[i] += steps[i].reward
                counts[i] += 1
                pictures[i] = picture(i)
            yield overlay.grid(pictures)
    finally:
        for env in players:
            env.close()


def _check_window(chosen: Sequence[int] | None) -> None:
    """Check that there is something to show, and a display to show it on.

    Raises:
        UserError: there is not.
    """
    if chosen == []:
        raise UserError("live=true film=none: there is nothing to show; name episodes, film=0,1, or leave live out")
    trial = [sys.executable, "-c", "import cv2; cv2.namedWindow('drqv2')"]  # where it finds no display, Qt aborts
    try:
        subprocess.run(trial, capture_output=True, timeout=60, check=True)
    except subprocess.SubprocessError as e:
        where = f" (DISPLAY={os.environ['DISPLAY']} opens no window)" if os.environ.get("DISPLAY") else ""
        raise UserError(f"live=true: there is no display here{where}; leave it out, and a video is written") from e


def _write(pictures: Iterator[np.ndarray], fps: float, path: Path) -> None:
    try:
        video = Mp4(path.parent, fps, next(pictures))
        try:
            for picture in pictures:
                video.write(picture)
            video.finish(path)
        except BaseException:
            video.discard()
            raise
    except (OSError, RuntimeError) as e:
        raise UserError(f"{path}: the video cannot be written ({e})") from e
    print(f"video: {path}")


def _show(pictures: Iterator[np.ndarray], fps: float) -> None:
    title = "drqv2 (q ends)"
    os.environ.setdefault("QT_LOGGING_RULES", "default.warning=false")  # opencv's Qt has no fonts, and needs none here
    try:
        cv2.namedWindow(title, cv2.WINDOW_AUTOSIZE | cv2.WINDOW_GUI_NORMAL)
        due = time.perf_counter()
        for picture in pictures:
            cv2.imshow(title, cv2.cvtColor(picture, cv2.COLOR_RGB2BGR))
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
