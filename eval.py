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
    from drqv2.machine import calm_openmp

    calm_openmp()  # before torch is loaded

    from drqv2.stopping import leave_at_ctrl_c

    leave_at_ctrl_c()

import inspect
import json
import os
import re
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import cv2
import hydra
import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from drqv2 import files, overlay, parts, snapshot, state, utils
from drqv2.acting import choose_actions
from drqv2.arguments import run_tool
from drqv2.config import settle
from drqv2.errors import UserError
from drqv2.evaluation import play
from drqv2.explain import did_you_mean
from drqv2.resuming import ADVICE, misfit
from drqv2.schema import CFGS, Key, show, tasks
from drqv2.statistics import interval, iqm, mean
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
    chosen = _numbers(film, episodes)
    if live:
        _check_window(chosen)
    path, (cfg, weights, frame) = _whole(_find(source, snapshot))
    if not trust and not (source.is_dir() and path.resolve().is_relative_to(source.resolve())):
        _refuse_foreign_code(cfg, path)
    cfg.device, cfg.compile, cfg.num_eval_envs, cfg.overlap = device, "auto", num_envs, False
    cfg.replay_buffer_size = 1000  # nothing is replayed; what is checked is that an episode would fit
    if "device" in cfg.agent:
        cfg.agent.device = device
    if agent_dir is not None:
        cfg.agent_dir = agent_dir
    if task is not None:
        _take_task(cfg, task)
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
        agent = _agent(cfg, players[0], weights, path)
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


def _find(source: Path, name: str | None) -> list[Path]:
    """Return the file of weights that is meant; the newest snapshot of a run, then the one before it."""
    if source.is_file():
        if name:
            raise UserError(f"snapshot={name}: {source} is a file of weights itself; give the run's directory")
        return [source]
    if not source.is_dir():
        raise UserError(f"{source}: there is no such run directory or file")
    milestones = [path for path in source.glob("weights_*.pt") if path.stem[8:].isdecimal()]
    there = [path for each in files.SNAPSHOTS if (path := source / each).is_file()]
    there += sorted(milestones, key=lambda path: int(path.stem[8:]), reverse=True)
    if name is None:
        if not there:
            raise UserError(f"{source}: there is no snapshot in it; give the directory of a run")
        return [path for path in there if path.name in files.SNAPSHOTS] or there[:1]
    for path in (source / name, Path(name)):
        if path.is_file():
            return [path]
    others = ", ".join(path.name for path in there) or "none"
    raise UserError(f"snapshot={name}: there is no such file in {source}; there are {others}")


def _whole(paths: Sequence[Path]) -> tuple[Path, tuple[DictConfig, dict[str, Any], int]]:
    """Return the first file that can be read, and what is in it; say which could not."""
    for path in paths[:-1]:
        try:
            return path, _read(path)
        except UserError as e:
            print(f"{str(e).splitlines()[0]}; taking the one before it")
    return paths[-1], _read(paths[-1])


def _read(path: Path) -> tuple[DictConfig, dict[str, Any], int]:
    """Return the configuration, the agent's captured state (or tensors by dotted name) and the frame."""
    if path.suffix == ".safetensors":
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, framework="pt") as f:
                about = f.metadata() or {}
                weights = {name: f.get_tensor(name) for name in f.keys()}  # noqa: SIM118 (not a mapping)
            if not {"config", "frame"} <= about.keys():
                raise ValueError("it holds no config")
            config, frame = json.loads(about["config"]), int(about["frame"])
        except (SafetensorError, OSError, ValueError) as e:
            raise UserError(f"{path}: no weights that python -m drqv2.snapshot export has written ({_line(e)})") from e
    else:
        try:
            saved = snapshot.load(path)
        except UserError as e:
            raise UserError(f"{e}\n{ADVICE}") from e
        config = saved.get("config")
        frame, weights = saved.get("frame", ""), saved.get("agent", {})
        if not isinstance(frame, int) or not isinstance(weights, dict) or "kind" not in weights:
            raise UserError(f"{path}: there is no agent in it\n{ADVICE}")
    if not config:
        raise UserError(f"{path}: there is no configuration in it; train with init_from={path} first")
    for node in ("agent", "env"):
        found = config.get(node) if isinstance(config, dict) else config
        if not isinstance(found, dict) or "_target_" not in found:
            where = node if isinstance(config, dict) else "config"
            raise UserError(
                f"{path}: the configuration in it is not a run's, {where}={_line(show(found))}: must hold _target_\n"
                "Give a snapshot of train.py's, or a file that python -m drqv2.snapshot export has written."
            )
    base: Any = OmegaConf.to_container(OmegaConf.load(CFGS / "config.yaml"))  # for keys that there were not yet
    known = {key: value for key, value in base.items() if key not in ("defaults", "hydra", "agent", "env")}
    try:
        cfg = OmegaConf.merge(known, config)
    except OmegaConfBaseException as e:
        raise UserError(f"{path}: the configuration in it cannot be read ({_line(e)})") from e
    assert isinstance(cfg, DictConfig)
    cfg.init_from = None
    return cfg, weights, frame


def _line(said: object, length: int = 100) -> str:
    return " ".join(str(said).split())[:length]


def _refuse_foreign_code(cfg: DictConfig, path: Path) -> None:
    """Check that a file which may be anybody's names no code but this project's agents.

    Raises:
        UserError: it does.
    """
    plain: Any = OmegaConf.to_container(cfg)
    for key, value in _code({name: plain[name] for name in ("agent", "env", "agent_dir")}):
        if key != "agent._target_" or not re.fullmatch(r"drqv2\.agents\.\w+\.\w+Agent", str(value)):
            raise UserError(
                f"{path} names code to run, {_line(f'{key}={value}')}\nIf you know where it comes from, say trust=true."
            )


def _code(node: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield, by dotted name, what Hydra would import or work out in an unresolved configuration, however deep."""
    leaf = name.rpartition(".")[2]
    if isinstance(node, dict | list):
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            yield from _code(value, f"{name}.{key}".lstrip("."))
    elif (node is not None and leaf in ("_target_", "agent_dir")) or (isinstance(node, str) and "${" in node):
        yield name, node


def _take_task(cfg: DictConfig, task: str) -> None:
    """Set another task. An environment of the run's own that takes no task_name gives way to dm_control's.

    Raises:
        UserError: it would, and there is no such task of dm_control's.
    """
    own = cfg.env._target_
    if own is None and task not in tasks():
        near = did_you_mean(task, tasks())
        raise UserError(f"task={task}: there is no such task\nallowed: the files of cfgs/task{near}")
    if own is not None and not _takes_task_name(cfg):
        if task not in tasks():
            raise UserError(
                f"task={task}: the run has an environment of its own, env._target_={own}, which takes no task_name\n"
                f"allowed: the files of cfgs/task{did_you_mean(task, tasks())}; without task= the run's own is played"
            )
        cfg.env = {"_target_": None}
    cfg.task_name = task


def _takes_task_name(cfg: DictConfig) -> bool:
    try:
        taken = inspect.signature(hydra.utils.get_object(cfg.env._target_)).parameters
    except Exception:  # whatever its import raises
        return False
    return "task_name" in taken and "task_name" not in cfg.env


def _agent(cfg: DictConfig, env: Any, weights: dict[str, Any], path: Path) -> Any:
    """Return the agent with its weights.

    Raises:
        UserError: they do not fit, or some are missing: nobody wants to see what a random network plays.
    """
    agent = parts.make_agent(cfg, env, torch.device(cfg.device))
    captured = isinstance(weights.get("kind"), str)
    with warnings.catch_warnings(action="ignore"):  # of what cannot be saved
        own = state.capture(agent)
    if own["kind"] == "stateful" and not captured:
        raise UserError(f"{path}: the agent has a state_dict of its own: tensors alone do not fill it; give a snapshot")
    needed, given = state.parameters(own), state.parameters(weights) if captured else weights
    if missing := sorted(needed.keys() - given.keys()):
        networks = ", ".join(sorted({name.partition(".")[0] for name in missing}))
        raise UserError(
            f"{path}: weights of the agent are missing, of {networks} ({missing[0]} and {len(missing) - 1} more)\n"
            "Give a snapshot, or all that python -m drqv2.snapshot export RUN_DIR FILE.safetensors writes."
        )
    try:
        if not captured:
            if unknown := sorted(given.keys() - needed.keys()):
                raise KeyError(f"the agent has no {unknown[0]}")
            for name, network in state.networks(own):
                network["value"] = {key: given[f"{name}.{key}" if name else key] for key in network["value"]}
        state.restore(agent, weights if captured else own, weights_only=True)
    except (RuntimeError, AttributeError, KeyError, ValueError) as e:  # the last two: tensors for an optimizer
        raise UserError(
            f"{path}: its weights do not fit {cfg.task_name}: {misfit(e)}\n"
            "Give a task of the same actions and images as the run's."
        ) from e
    return agent


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
