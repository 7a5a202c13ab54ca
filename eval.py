"""Evaluate a trained agent: print a table of returns and record a video.

python eval.py RUN_DIR                                # ten episodes with the run's newest snapshot
python eval.py RUN_DIR episodes=20 film=best          # video of the best of twenty episodes
python eval.py RUN_DIR snapshot=weights_500000.pt     # the weights of a milestone
python eval.py RUN_DIR task=walker_run camera=1 render_size=480 fps=30
python eval.py RUN_DIR episodes=50                    # a run of several tasks: a row and a picture for each of them
python eval.py policy.safetensors                     # weights written by python -m drqv2.snapshot export
python eval.py RUN_DIR export=policy.onnx             # the policy for other programs, and a model card
python eval.py RUN_DIR episodes=100 store=DIR         # keep the episodes, as a data set for regime=offline
python eval.py RUN_DIR episodes=100 store=DIR noise=0.3 random_share=0.1
python eval.py RUN_DIR live=true                      # show the episodes in a window

The episodes do not occur in training and are the same for every snapshot of a run, so that you can compare snapshots.
"""

from __future__ import annotations

if __name__ == "__main__":
    from drqv2.evaluation.options import KEYS, source_of
    from drqv2.launch.arguments import start_tool

    start_tool("eval", __doc__, KEYS, source_of)  # calls `run` below

import itertools
import json
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig

from drqv2 import envs, utils
from drqv2.agents.acting import evaluation_policy
from drqv2.config.checks import validate
from drqv2.config.formatting import column_name, counted, rewards_of
from drqv2.datasets.origin import origin_of_run
from drqv2.errors import UserError
from drqv2.evaluation import screen
from drqv2.evaluation import trained_agent as trained
from drqv2.evaluation.card import model_card
from drqv2.evaluation.export import export, observed, require_format
from drqv2.evaluation.options import KEYS, source_of
from drqv2.evaluation.storing import EpisodeStore, with_noise
from drqv2.evaluation.tables import episodes_table, tasks_table
from drqv2.evaluation.world import world_of
from drqv2.launch.arguments import run_tool
from drqv2.logging import overlay
from drqv2.run import factory
from drqv2.run.environments import make_envs, task_names
from drqv2.run.evaluation import EpisodeResult, play, singly
from drqv2.run.films import Picture, side_by_side
from drqv2.system import files

_EVALUATION = 2**31  # index of this evaluation; those during training count from 0
_FILM = "0,1,2,3"
_GRID_FPS = 25  # pictures per second of simulated time with several tasks, each of which is drawn in every picture
Policy = Callable[[Any, int], np.ndarray]  # time step, number of its episode -> action


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line described in the module's docstring."""
    run_tool(run, __doc__, KEYS, sys.argv[1:] if argv is None else argv)


def run(sources: Sequence[str], values: dict[str, Any]) -> None:
    """Play the episodes, print the table, and write or show the video.

    Args:
        sources: a run directory or a file of weights.
        values: of all KEYS.

    Raises:
        UserError: there are no weights, or they do not fit the task.
    """
    source, args = source_of(sources), SimpleNamespace(**values)
    envs.choose_backend()  # before an environment's module imports dm_control
    chosen = _episodes_to_film(args.film or _FILM, args.episodes)
    _require_sense(args, chosen)
    path = trained.find(source, args.snapshot)
    cfg, weights, frame = trained.read(path)
    if not args.trust and not (source.is_dir() and path.resolve().is_relative_to(source.resolve())):
        trained.reject_foreign_code(cfg, path)
    another = args.task is not None and cfg.get("tasks") is None
    if args.export and (another or args.seed is not None or args.max_episode_steps):
        raise UserError("export: describes the run as it was trained; leave out task, seed and max_episode_steps")
    _override(cfg, args)
    names = task_names(cfg)
    tasks = [_index(args.task, names)] if args.task and len(names) > 1 else list(range(len(names)))
    played = cfg.task_name if len(tasks) == len(names) else column_name(names[tasks[0]])
    folder = Path(args.out) if args.out else (source if source.is_dir() else source.parent) / "eval"
    stem = folder / f"{path.stem}_{frame}_{re.sub(r'[^A-Za-z0-9_.-]+', '_', played)}"
    if not args.live and not args.store:
        _make(folder)
    filmed = 1 if chosen is None or (len(names) > 1 and args.film is None) else len(chosen)  # episodes of each task
    if args.store and len(tasks) > 1:
        raise UserError("store: keeps the episodes of one task; add task=NAME, one of " + ", ".join(names))
    cfg.num_eval_envs, cfg.overlap = max(args.num_envs, filmed), args.num_envs > 1
    cfg.max_episode_steps = args.max_episode_steps or cfg.max_episode_steps
    patience = "set num_envs=1: environments in the main process have no time limit"
    made = make_envs(cfg, utils.EVAL_ENV, patience, "stop this program and start it with max_episode_steps=N")
    try:
        own = [made[t * cfg.num_eval_envs :][: cfg.num_eval_envs] for t in tasks]
        agent = trained.agent_with(cfg, made[0], weights, path)
        act: Policy = torch.no_grad()(evaluation_policy(agent, made[0].action_spec().shape, frame // cfg.action_repeat))
        if args.camera is not None:  # report a wrong camera now, not after all episodes
            for first, *_ in own:
                first.call("begin", _EVALUATION, 0)
                first.call("render", 16, 16, args.camera)
        playing = [some[: args.num_envs] for some in own]
        if args.store:
            about = {"weights": str(path), "frame": frame} | origin_of_run(cfg, names[tasks[0]])
            return _store_episodes(playing[0], act, args, cfg, about)
        results = _play(playing, args.episodes, act)
        print(f"{played}: {path}, frame {frame:,}, {counted(args.episodes, 'episode')}, seed {cfg.seed}")
        played_names = [names[t] for t in tasks]
        table = _table(played_names, results, cfg.action_repeat, several=len(names) > 1)
        print("\n".join(table), flush=True)
        if not args.live:
            summary = {"weights": str(path), "frame": frame, "task": played, "seed": cfg.seed}
            _store(stem, summary | _numbers(played_names, results, several=len(names) > 1))
        if args.export:
            exported = dict(zip(played_names, (some[0] for some in own), strict=True))
            played_all = list(itertools.chain(*results))
            _export(agent, Path(args.export), act, exported, cfg, source, frame, played_all, table)
        cells = _cells(chosen, args.film, results, several=len(names) > 1)
        if cells:
            pictures = [Picture(own[i][k % filmed], e, played_names[i]) for k, (i, e) in enumerate(cells)]
            _record(pictures, act, args, stem, several=len(names) > 1)
    finally:
        for env in made:
            env.close()


def _require_sense(args: SimpleNamespace, chosen: Sequence[int] | None) -> None:
    """Raise UserError if values conflict or do not suit the machine; `chosen` are the episodes to film."""
    if args.live and chosen == []:
        raise UserError("live=true film=none: nothing to show; choose episodes, say film=0,1, or omit live=true")
    if args.live:
        screen.require_display()
    if not args.store and (args.noise or args.random_share):
        raise UserError("noise and random_share apply only to store=DIR; evaluations do not explore")
    if args.store and (args.export or args.live or args.film or args.out):
        raise UserError("store=DIR: keeps the episodes and nothing else; leave out export, live, film and out")
    if args.export:
        require_format(Path(args.export))


def _record(pictures: Sequence[Picture], act: Policy, args: SimpleNamespace, stem: Path, several: bool) -> None:
    """Play episodes side by side, and write their video or show it; those of `several` tasks are drawn less often."""
    seconds = pictures[0].env.step_seconds
    fps = 1 / seconds if seconds else 20.0
    every = max(1, round(fps / _GRID_FPS)) if several else 1
    size = overlay.cell_size(args.render_size, len(pictures)) if several else args.render_size
    frames = side_by_side(pictures, _EVALUATION, act, size, args.camera, every, titles=several)
    if args.live:
        screen.show(frames, args.fps or fps / every)
    else:
        screen.write(frames, args.fps or fps / every, stem.with_name(f"{stem.name}.mp4"))


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise files.cannot_write(folder, e, "give out=DIR") from e


def _index(task: str, names: Sequence[str]) -> int:
    """Return the index of one of several tasks, which may be named as in the columns of eval.csv.

    Raises:
        UserError: the run has no such task.
    """
    found = [i for i, name in enumerate(names) if task in (name, column_name(name))]
    if not found:
        raise UserError(f"task={task}: the run's tasks are {', '.join(names)}")
    return found[0]


def _play(envs: Sequence[Sequence[Any]], episodes: int, act: Policy) -> list[list[EpisodeResult]]:
    """Return the results of the episodes of each task, in its environments."""
    results = play(list(itertools.chain(*envs)), _EVALUATION, episodes, singly(act), lambda *_: None, len(envs))
    return [results[i * episodes :][:episodes] for i in range(len(envs))]


def _store_episodes(
    envs: Sequence[Any], act: Policy, args: SimpleNamespace, cfg: DictConfig, about: dict[str, Any]
) -> None:
    """Play the episodes, with noise if configured, into a data set; print their returns."""
    about |= {"seed": cfg.seed, "noise": args.noise, "random_share": args.random_share}
    explore = with_noise(act, envs[0].action_spec(), args.noise, args.random_share, cfg.seed)
    with EpisodeStore(Path(args.store), envs[0], cfg.frame_stack, about) as store:
        results = play(envs, _EVALUATION, args.episodes, singly(explore), store.watch)
    episodes = counted(args.episodes, "episode")
    print(f"{about['task']}: {about['weights']}, frame {about['frame']:,}, {episodes}, seed {cfg.seed}")
    print("\n".join(episodes_table(results, cfg.action_repeat)))
    print(f"data set: {args.store}; python -m drqv2.datasets card {args.store}")


def _export(
    agent: Any,
    path: Path,
    act: Policy,
    envs: Mapping[str, Any],
    cfg: DictConfig,
    source: Path,
    frame: int,
    results: Sequence[EpisodeResult],
    table: Sequence[str],
) -> None:
    """Write the policy for other programs, checked on an environment of each task, by name, and its model card."""
    number = math.ceil(100 / len(envs))
    time_steps = [step for env in envs.values() for step in observed(env, _EVALUATION, act, number)]
    spec, run_dir = next(iter(envs.values())).action_spec(), source if source.is_dir() else None
    actions = {name: env.call("own_action_spec") for name, env in envs.items()}
    world = world_of(cfg, run_dir, frame, time_steps[0].observation, spec, actions, results)
    difference, inputs = export(agent, path, time_steps, spec.shape, world.metadata())
    card = model_card(path, cfg, run_dir, world, inputs, table, difference, actions)
    written = path.with_name(f"{path.name}.md")
    try:
        files.write_atomically(written, card.encode())
    except OSError as e:
        raise files.cannot_write(path, e, "give export=FILE elsewhere") from e
    print(f"policy: {path}, checked on {counted(len(time_steps), 'observation')}; model card: {written}")


def _table(
    played: Sequence[str], results: Sequence[Sequence[EpisodeResult]], action_repeat: int, several: bool
) -> list[str]:
    """Return the table's lines, below one that names the rewards where that matters."""
    rewards = rewards_of(played)
    lines = tasks_table(played, results) if several else episodes_table(results[0], action_repeat)
    return [rewards, *lines] if rewards else lines


def _store(stem: Path, summary: dict[str, Any]) -> None:
    """Write the returns beside the video."""
    file = stem.with_name(f"{stem.name}.json")
    try:
        files.write_atomically(file, json.dumps(summary, indent=1).encode())
    except OSError as e:
        raise files.cannot_write(file, e, "give out=DIR") from e


def _numbers(played: Sequence[str], results: Sequence[Sequence[EpisodeResult]], several: bool) -> dict[str, Any]:
    """Return the contents of the JSON file: the episodes' returns, by task if there are several, and successes."""
    returns = {name: [result.total for result in own] for name, own in zip(played, results, strict=True)}
    success = {name: [result.success for result in own] for name, own in zip(played, results, strict=True)}
    numbers: dict[str, Any] = {"returns": returns if several else returns[played[0]]}
    if rewards := rewards_of(played):
        numbers["rewards"] = rewards
    known = any(None not in own for own in success.values())
    return numbers | {"success": success} if known else numbers


def _cells(
    chosen: Sequence[int] | None, film: str | None, results: Sequence[Sequence[EpisodeResult]], several: bool
) -> list[tuple[int, int]]:
    """Return the index of the task in `results` and the episode of each picture; of `several`, by default the first."""
    if chosen is None:
        pick = np.argmax if film == "best" else np.argmin
        return [(i, int(pick([r.total for r in own]))) for i, own in enumerate(results)]
    return [(i, e) for i in range(len(results)) for e in (chosen[:1] if several and film is None else chosen)]


def _override(cfg: DictConfig, args: SimpleNamespace) -> None:
    """Change a run's configuration for evaluation and resolve it on this machine."""
    cfg.device, cfg.compile, cfg.num_eval_envs = args.device, "auto", args.num_envs
    cfg.precision = "auto" if cfg.precision == "bf16" else cfg.precision  # the run may be from another machine
    cfg.replay_buffer_size = 10**9  # unused, but checked against the length of episodes
    if "device" in cfg.agent:
        cfg.agent.device = args.device
    if args.agent_dir is not None:
        cfg.agent_dir = args.agent_dir
    if args.task is not None and cfg.get("tasks") is None:
        trained.override_task(cfg, args.task)
    elif args.task is not None and len(cfg.tasks) == 1:
        cfg.tasks = [args.task]
    if args.seed is not None:
        cfg.seed = args.seed
    validate(cfg)
    factory.prepare_machine(cfg)


def _episodes_to_film(film: str, episodes: int) -> list[int] | None:
    """Parse `film`; None means that the returns decide which episodes are filmed."""
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
