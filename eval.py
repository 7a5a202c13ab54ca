"""Evaluate a trained agent: print a table of returns and record a video.

python eval.py RUN_DIR                                # ten episodes with the run's newest snapshot
python eval.py RUN_DIR episodes=20 film=best          # video of the best of twenty episodes
python eval.py RUN_DIR snapshot=weights_500000.pt     # the weights of a milestone
python eval.py RUN_DIR task=walker_run camera=1 render_size=480 fps=30
python eval.py RUN_DIR film=0 cameras=[0,1]           # several cameras side by side
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
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from drqv2 import envs, utils
from drqv2.agents.acting import evaluation_policy
from drqv2.config.formatting import counted, rewards_of
from drqv2.datasets.origin import origin_of_run
from drqv2.envs.handles import EnvHandle
from drqv2.errors import UserError
from drqv2.evaluation import screen
from drqv2.evaluation import trained_agent as trained
from drqv2.evaluation.card import model_card
from drqv2.evaluation.export import export, observed, require_format
from drqv2.evaluation.options import KEYS, source_of
from drqv2.evaluation.storing import EpisodeStore, with_noise
from drqv2.evaluation.subject import Subject, subject_of
from drqv2.evaluation.tables import episodes_table, tasks_table
from drqv2.evaluation.world import world_of
from drqv2.launch.arguments import run_tool
from drqv2.logging import overlay
from drqv2.run.environments import make_envs, setting
from drqv2.run.evaluation import play, singly
from drqv2.run.films import Picture, side_by_side
from drqv2.run.stats import EpisodeResult
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
    subject = subject_of(source, args)
    if not args.live and not args.store:
        _make(subject.stem.parent)
    filmed = 1 if chosen is None or (subject.several and args.film is None) else len(chosen)  # episodes of each task
    with _environments(subject, args, max(args.num_envs, filmed)) as own:
        first = own[0][0]
        agent = trained.agent_with(subject.cfg, first, subject.weights, subject.path)
        step = subject.frame // subject.cfg.action_repeat
        act: Policy = torch.no_grad()(evaluation_policy(agent, first.action_spec().shape, step))
        playing = [some[: args.num_envs] for some in own]
        if args.store:
            return _store_episodes(playing[0], act, args, subject)
        results = _play(playing, args.episodes, act)
        table = _print_table(subject, args.episodes, results)
        if not args.live:
            _store(subject, results)
        if args.export:
            exported = dict(zip(subject.played, (some[0] for some in own), strict=True))
            _export(agent, Path(args.export), act, exported, subject, list(itertools.chain(*results)), table)
        if cells := _cells(chosen, args.film, results, subject.several):
            pictures = [Picture(own[i][k % filmed], e, subject.played[i]) for k, (i, e) in enumerate(cells)]
            _record(pictures, act, args, subject)


@contextmanager
def _environments(subject: Subject, args: SimpleNamespace, number: int) -> Iterator[list[list[EnvHandle]]]:
    """Open so many environments of each task that is played; a wrong camera is reported now, not after all episodes."""
    cfg = subject.cfg
    cfg.num_eval_envs, cfg.overlap = number, args.num_envs > 1
    cfg.max_episode_steps = args.max_episode_steps or cfg.max_episode_steps
    patience = "set num_envs=1: environments in the main process have no time limit"
    made = make_envs(cfg, utils.EVAL_ENV, patience, "stop this program and start it with max_episode_steps=N")
    try:
        own = [made[t * number :][:number] for t in subject.tasks]
        for first, *_ in own if any(camera is not None for camera in _cameras(args)) else ():
            first.call("begin", _EVALUATION, 0)
            for camera in _cameras(args):
                first.call("render", 16, 16, camera)
        yield own
    finally:
        for env in made:
            env.close()


def _cameras(args: SimpleNamespace) -> list[int | str | None]:
    """Return the cameras of the video; None for that of the run."""
    return args.cameras or [args.camera]


def _require_sense(args: SimpleNamespace, chosen: Sequence[int] | None) -> None:
    """Raise UserError if values conflict or do not suit the machine; `chosen` are the episodes to film."""
    if args.live and chosen == []:
        raise UserError("live=true film=none: nothing to show; choose episodes, say film=0,1, or omit live=true")
    if args.live:
        screen.require_display()
    if args.camera is not None and args.cameras:
        raise UserError("camera and cameras: give only one of them")
    if not args.store and (args.noise or args.random_share):
        raise UserError("noise and random_share apply only to store=DIR; evaluations do not explore")
    if args.store and (args.export or args.live or args.film or args.out):
        raise UserError("store=DIR: keeps the episodes and nothing else; leave out export, live, film and out")
    if args.export:
        require_format(Path(args.export))


def _record(pictures: Sequence[Picture], act: Policy, args: SimpleNamespace, subject: Subject) -> None:
    """Play episodes side by side, and write their video or show it; those of several tasks are drawn less often."""
    several, seconds = subject.several, pictures[0].env.step_seconds
    fps = 1 / seconds if seconds else 20.0
    every = max(1, round(fps / _GRID_FPS)) if several else 1
    size = overlay.cell_size(args.render_size, len(pictures)) if several else args.render_size
    frames = side_by_side(pictures, _EVALUATION, act, size, _cameras(args), every, titles=several)
    if args.live:
        screen.show(frames, args.fps or fps / every)
    else:
        screen.write(frames, args.fps or fps / every, subject.stem.with_name(f"{subject.stem.name}.mp4"))


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise files.cannot_write(folder, e, "give out=DIR") from e


def _play(envs: Sequence[Sequence[Any]], episodes: int, act: Policy) -> list[list[EpisodeResult]]:
    """Return the results of the episodes of each task, in its environments."""
    results = play(list(itertools.chain(*envs)), _EVALUATION, episodes, singly(act), lambda *_: None, len(envs))
    return [results[i * episodes :][:episodes] for i in range(len(envs))]


def _store_episodes(envs: Sequence[EnvHandle], act: Policy, args: SimpleNamespace, subject: Subject) -> None:
    """Play the episodes, with noise if configured, into a data set; print their returns."""
    cfg, about = subject.cfg, {"weights": str(subject.path), "frame": subject.frame}
    about |= origin_of_run(cfg, subject.played[0])
    about |= {"seed": cfg.seed, "noise": args.noise, "random_share": args.random_share}
    explore = with_noise(act, envs[0].action_spec(), args.noise, args.random_share, cfg.seed)
    with EpisodeStore(Path(args.store), envs[0], cfg.frame_stack, about) as store:
        results = play(envs, _EVALUATION, args.episodes, singly(explore), store.watch)
    print(_headline(subject, str(about["task"]), args.episodes))
    print("\n".join(episodes_table(results, setting(cfg, subject.played[0], "action_repeat"))))
    print(f"data set: {args.store}; python -m drqv2.datasets card {args.store}")


def _export(
    agent: Any,
    path: Path,
    act: Policy,
    envs: Mapping[str, EnvHandle],
    subject: Subject,
    results: Sequence[EpisodeResult],
    table: Sequence[str],
) -> None:
    """Write the policy for other programs, checked on an environment of each task, by name, and its model card."""
    cfg, run_dir = subject.cfg, subject.source if subject.source.is_dir() else None
    number = math.ceil(100 / len(envs))
    time_steps = [step for env in envs.values() for step in observed(env, _EVALUATION, act, number)]
    spec = next(iter(envs.values())).action_spec()
    actions = {name: env.call("own_action_spec") for name, env in envs.items()}
    world = world_of(cfg, run_dir, subject.frame, time_steps[0].observation, spec, actions, results)
    difference, inputs = export(agent, path, time_steps, spec.shape, world.metadata())
    card = model_card(path, cfg, run_dir, world, inputs, table, difference, actions)
    written = path.with_name(f"{path.name}.md")
    try:
        files.write_atomically(written, card.encode())
    except OSError as e:
        raise files.cannot_write(path, e, "give export=FILE elsewhere") from e
    print(f"policy: {path}, checked on {counted(len(time_steps), 'observation')}; model card: {written}")


def _headline(subject: Subject, title: str, episodes: int) -> str:
    frame, seed = f"frame {subject.frame:,}", f"seed {subject.cfg.seed}"
    return f"{title}: {subject.path}, {frame}, {counted(episodes, 'episode')}, {seed}"


def _print_table(subject: Subject, episodes: int, results: Sequence[Sequence[EpisodeResult]]) -> list[str]:
    """Print the returns and, where it matters, which rewards these are; return the lines."""
    played, repeat = subject.played, setting(subject.cfg, subject.played[0], "action_repeat")
    rewards = rewards_of(played)
    lines = tasks_table(played, results) if subject.several else episodes_table(results[0], repeat)
    lines = [rewards, *lines] if rewards else lines
    print(_headline(subject, subject.title, episodes))
    print("\n".join(lines), flush=True)
    return lines


def _store(subject: Subject, results: Sequence[Sequence[EpisodeResult]]) -> None:
    """Write the returns beside the video."""
    file = subject.stem.with_name(f"{subject.stem.name}.json")
    summary = {"weights": str(subject.path), "frame": subject.frame, "task": subject.title, "seed": subject.cfg.seed}
    summary |= _numbers(subject.played, results, subject.several)
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
