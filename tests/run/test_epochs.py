"""Runs driven from Python: epochs, hooks, what each epoch tells, and how they end and resume."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

import train
from drqv2.errors import DiskError, Stopped, UserError
from drqv2.launch.command_line import launch
from drqv2.run.hooks import Hooks
from drqv2.run.stats import EpisodeStats, EpochStats, EvalStats
from drqv2.run.workspace import BaseWorkspace
from drqv2.snapshot import file as snapshot
from drqv2.system.signals import SIGNALS
from tests.short_run import IMPALA, IN_TURN, OFFLINE, PPO, ROOT, SHORT, assert_same, rows, stored
from tests.task_run import ALL, LONG, TASKS, Recorder, episodes, tasks
from tests.task_run import SHORT as SHORT_TASK

REGIMES = {
    "drqv2": SHORT,
    "multitask": [*TASKS, ALL],
    "ppo": PPO,
    "impala": [*IMPALA, *IN_TURN],
    "offline": OFFLINE,
}


def short(regime: str) -> list[str]:
    """Return the overrides of a short run."""
    return [*REGIMES[regime], *([f"data={stored()}"] if regime == "offline" else [])]


def opened(run_dir: Path, regime: str = "drqv2", *overrides: str) -> BaseWorkspace:
    """Return the Workspace of a short run, new or resumed."""
    return train.make_workspace(train.compose(*short(regime), *overrides), run_dir)


def command_line(run_dir: Path, *overrides: str) -> Path:
    launch(train.main, "cfgs", argv=[*overrides, f"hydra.run.dir={run_dir}"])
    return run_dir


@pytest.fixture(scope="module")
def wholes(straight: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Runs of the command line by regime, each made when it is first asked for, to be left as they are."""
    made = {"drqv2": straight}

    def whole(regime: str) -> Path:
        if regime not in made:
            made[regime] = command_line(tmp_path_factory.mktemp(regime) / "run", *short(regime))
        return made[regime]

    return whole


def without_times(stats: Any) -> Any:
    """Return the plain values of statistics, but for what the clock says."""
    if isinstance(stats, dict):
        timed = ("seconds", "frames_per_second", "steps_per_second", "duration")
        return {name: without_times(value) for name, value in stats.items() if name not in timed}
    return stats


def recording(calls: list[str], regime: str = "drqv2") -> Hooks:
    """Return all hooks that a regime calls; they write down their names."""

    def note(name: str, value: Any = None) -> Callable[..., Any]:
        def call(*_: Any) -> Any:
            calls.append(name)
            return value

        return call

    def noted(name: str, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def call(argument: Any) -> Any:
            calls.append(name)
            return function(argument)

        return call

    hooks = Hooks(
        on_epoch_start=note("on_epoch_start"),
        on_step=note("on_step"),
        on_episode_end=note("on_episode_end"),
        save_checkpoint=note("save_checkpoint", "somewhere"),
        before_eval=note("before_eval"),
        score=noted("score", lambda stats: stats.return_mean),
        save_best=note("save_best"),
        stop=note("stop", False),
        transform_reward=noted("transform_reward", lambda rewards: rewards),
    )
    return replace(hooks, transform_reward=None, on_episode_end=None) if regime == "offline" else hooks


# The same run, however it is driven


@pytest.mark.slow
@pytest.mark.parametrize("regime", REGIMES)
def test_the_iterator_gives_the_bits_of_the_command_line_and_calls_the_hooks(
    regime: str, wholes: Callable[[str], Path], tmp_path: Path
) -> None:
    whole = wholes(regime)
    with opened(tmp_path / "run", regime) as run:
        told = followed(run, regime)
        np.random.seed(0)
    assert_same(whole, tmp_path / "run")
    table = rows(whole, "eval")
    assert [epoch.index for epoch in told] == list(range(1, len(table)))
    assert [float(row["episode_reward"]) for row in table[1:]] == [e.eval.return_mean for e in told if e.eval]
    assert [int(float(row["frame"])) for row in table[1:]] == [epoch.frame for epoch in told]


@pytest.mark.slow
def test_two_runs_take_turns_in_one_process(wholes: Callable[[str], Path], tmp_path: Path) -> None:
    alone = [wholes("drqv2"), wholes("ppo")]
    with opened(tmp_path / "c", "drqv2") as c, opened(tmp_path / "d", "ppo") as d:
        for _ in zip(c.epochs(), d.epochs(), strict=False):
            torch.rand(3), np.random.rand()  # what other code draws is its own affair
        d.train()  # it is longer
    for one, other in zip(alone, ("c", "d"), strict=True):
        assert_same(one, tmp_path / other)


def test_a_run_leaves_the_generators_of_other_code_alone(tmp_path: Path) -> None:
    with opened(tmp_path / "run") as run:
        torch.manual_seed(5)
        expected = torch.rand(2)
        torch.manual_seed(5)
        epochs = run.epochs()
        next(epochs)
        assert torch.equal(torch.rand(2), expected)


@pytest.mark.slow
def test_a_run_that_is_left_is_continued(straight: Path, tmp_path: Path) -> None:
    with opened(tmp_path / "run") as run:
        for epoch in run.epochs():
            if epoch.index == 2:
                break
        summary = run.train()
    assert_same(straight, tmp_path / "run")
    assert summary.epochs == 3


@pytest.mark.slow
def test_a_run_that_is_left_and_closed_is_resumed_where_it_was(tmp_path: Path) -> None:
    overrides = "drqv2", "snapshot_keep=0", "eval_every_frames=null", "epoch_frames=160"
    with opened(tmp_path / "whole", *overrides) as run:
        run.train()
    with opened(tmp_path / "run", *overrides) as run:
        next(run.epochs())
    with opened(tmp_path / "run", *overrides) as run:
        assert run.global_frame == 160
        run.train()
    assert rows(tmp_path / "run", "train") == rows(tmp_path / "whole", "train")


def test_a_run_can_be_trained_by_an_epoch_at_a_time(straight: Path, tmp_path: Path) -> None:
    told = []
    for _ in range(3):
        with opened(tmp_path / "run") as run:
            told.append(next(run.epochs()))
    assert [(epoch.index, epoch.frame) for epoch in told] == [(1, 160), (2, 320), (3, 480)]
    assert told[2].best_score == max(float(row["episode_reward"]) for row in rows(straight, "eval"))
    assert rows(tmp_path / "run", "eval") == rows(straight, "eval")
    assert rows(tmp_path / "run", "train") == rows(straight, "train")


def test_a_closed_run_is_told_so(tmp_path: Path) -> None:
    with opened(tmp_path / "run") as run:
        next(run.epochs())
    with pytest.raises(UserError, match="is closed; open it again"):
        run.train()
    with pytest.raises(UserError, match="is closed"):
        run.reset()
    assert (tmp_path / "run/snapshot.pt").exists()


@pytest.mark.slow
def test_an_iterator_of_before_a_reset_says_so(straight: Path, tmp_path: Path) -> None:
    with opened(tmp_path / "run") as run:
        older = run.epochs()
        next(older)
        run.reset()
        next(run.epochs())
        with pytest.raises(UserError, match="was reset"):
            next(older)
        run.train()
    assert_same(straight, tmp_path / "run")


@pytest.mark.slow
def test_a_stopped_run_is_continued_in_the_same_process(straight: Path, tmp_path: Path) -> None:

    def kill(step: int) -> None:
        if step == 100:
            os.kill(os.getpid(), signal.SIGINT)

    with opened(tmp_path / "run") as run:
        with pytest.raises(Stopped):
            run.train(Hooks(on_step=kill))
        run.train()
    assert_same(straight, tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("envs", ["overlap=false", "overlap=true"])
def test_a_run_that_is_stopped_in_an_evaluation_continues_in_the_same_process(envs: str, tmp_path: Path) -> None:

    def kill(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    with opened(tmp_path / "run", "drqv2", envs, "num_eval_envs=2", "num_eval_episodes=3") as run:
        with pytest.raises(Stopped):
            run.train(Hooks(before_eval=kill))
        run.train()
    assert len(rows(tmp_path / "run", "eval")) == 4


@pytest.mark.slow
def test_a_run_whose_last_snapshot_cannot_be_written_does_not_end_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    def full(*_: object, **how: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def kill(step: int) -> None:
        if step == 60:
            monkeypatch.setattr(snapshot, "save", full)
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(DiskError, match="cannot be written"), opened(tmp_path / "run") as run:
        run.train(Hooks(on_step=kill))
    monkeypatch.undo()
    with opened(tmp_path / "run") as run:  # from the snapshot before
        first = next(run.epochs())
    with pytest.raises(DiskError, match="cannot be written"), opened(tmp_path / "run") as run:
        next(run.epochs(Hooks(before_eval=lambda *_: monkeypatch.setattr(snapshot, "save", full))))
    monkeypatch.undo()
    with opened(tmp_path / "run") as run:
        assert (first.index, next(run.epochs()).index) == (1, 2)


def test_an_iterator_whose_run_another_one_continues_says_so(tmp_path: Path) -> None:
    with opened(tmp_path / "run") as run:
        older = run.epochs()
        next(older)
        next(run.epochs())
        with pytest.raises(UserError, match="another iterator"):
            next(older)


@pytest.mark.slow
def test_only_the_runs_own_time_counts(tmp_path: Path) -> None:
    with opened(tmp_path / "run") as run:
        for _ in run.epochs():
            before = run.timer.total_time(), run.epoch.summary()
            time.sleep(0.05)
            assert (run.timer.total_time(), run.epoch.summary()) == before


@pytest.mark.slow
def test_runs_are_closed_in_any_order_and_signals_work_again(tmp_path: Path) -> None:
    handlers = [signal.getsignal(number) for number in SIGNALS]
    a, b = opened(tmp_path / "a"), opened(tmp_path / "b", "ppo")
    for run in (a, b):
        next(run.epochs())
    assert [signal.getsignal(number) for number in SIGNALS] == handlers
    for run in (a, b):
        run.__exit__(None, None, None)
    assert [signal.getsignal(number) for number in SIGNALS] == handlers


@pytest.mark.slow
def test_a_signal_stops_a_run_at_a_safe_point(straight: Path, tmp_path: Path) -> None:

    def kill(step: int) -> None:
        if step == 100:
            os.kill(os.getpid(), signal.SIGTERM)

    with opened(tmp_path / "run") as run, opened(tmp_path / "other", "ppo"), pytest.raises(Stopped):
        run.train(Hooks(on_step=kill))
    with opened(tmp_path / "run") as run:
        assert run.global_step >= 100
        run.train()
    assert_same(straight, tmp_path / "run")


def test_a_directory_has_one_run_at_a_time(tmp_path: Path) -> None:
    with opened(tmp_path / "run"), pytest.raises(UserError, match="in use by this process"):
        opened(tmp_path / "run")
    with pytest.raises(UserError):
        opened(tmp_path / "other", "drqv2", "init_from=tests/short_run.py")
    with opened(tmp_path / "other"):  # a start that failed has let go of it
        pass


@pytest.mark.slow
@pytest.mark.parametrize("regime", REGIMES)
def test_a_start_that_fails_leaves_nothing_open(regime: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def alive() -> int:
        me = psutil.Process()
        return len(me.children(recursive=True)) + len(me.open_files())

    more = [regime, "overlap=true", "replay_buffer_num_workers=1"]
    if regime in ("ppo", "impala"):
        more = [regime, "vector=processes" if regime == "ppo" else "deterministic=false"]
    with opened(tmp_path / "first", *more) as run:  # what the process keeps, such as its fork server, is there now
        next(run.epochs())
        during = alive()
    before = alive()
    assert before < during
    monkeypatch.setattr(type(run), "begin", lambda _: Path("there/is/no/such/file").read_text())
    with pytest.raises(FileNotFoundError):
        opened(tmp_path / "run", *more)
    assert alive() == before


@pytest.mark.slow
def test_reset_begins_anew(straight: Path, tmp_path: Path) -> None:
    with opened(tmp_path / "run") as run:
        next(run.epochs())
        run.reset()
        assert run.global_frame == 0
        assert not (tmp_path / "run/eval.csv").exists()
        run.train()
    assert_same(straight, tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("regime", REGIMES)
def test_resuming_restores_what_epochs_tell(regime: str, tmp_path: Path) -> None:
    with opened(tmp_path / "whole", regime) as run:
        expected = [without_times(asdict(epoch)) for epoch in run.epochs()]
    with opened(tmp_path / "run", regime) as run:
        epochs = run.epochs()
        first = [without_times(asdict(next(epochs))) for _ in range(2 if len(expected) > 2 else 1)]
        run.save_snapshot()
        run.snapshots.finish()
    with train.make_workspace(train.compose(resume=str(tmp_path / "run"))) as run:
        assert run.progress.epoch == len(first)
        rest = [without_times(asdict(epoch)) for epoch in run.epochs()]
    assert first + rest == expected


# Hooks


def documented_order() -> list[str]:
    """Return the hooks in the order of the table in docs/library.md."""
    text = (ROOT / "docs/library.md").read_text()
    return re.findall(r"^\| \d+ \| `(\w+)", text, re.MULTILINE)


def assert_documented_order(calls: list[str], regime: str) -> None:
    order = [*documented_order(), "epoch"]
    collecting = ["transform_reward", "on_episode_end"]
    assert set(calls) == set(order) - (set(collecting) if regime == "offline" else set())
    letter = {name: chr(ord("a") + i) for i, name in enumerate(order)}
    text = "".join(letter[name] for name in calls)
    start, step, *ones, _, _, _, _, _, _ = order
    assert [start, step, *ones] == ["on_epoch_start", "on_step", *collecting]
    within = f"[{''.join(letter[name] for name in (step, *ones))}]+"
    before, score, best, stop = (letter[name] for name in ("before_eval", "score", "save_best", "stop"))
    an_epoch = f"{letter[start]}{within}{letter['save_checkpoint']}{before}{score}{best}?{stop}{letter['epoch']}"
    assert re.fullmatch(f"{before}{score}{best}({an_epoch})+", text)
    names = (
        "on_epoch_start on_step transform_reward on_episode_end save_checkpoint before_eval score save_best stop epoch"
    )
    assert order == names.split()


def followed(run: BaseWorkspace, regime: str) -> list[EpochStats]:
    """Train with all hooks, which have to be called in the documented order; return what the epochs tell."""
    calls: list[str] = []
    told = []
    for epoch in run.epochs(recording(calls, regime)):
        calls.append("epoch")
        told.append(epoch)
    assert_documented_order(calls, regime)
    return told


@pytest.mark.slow
def test_hooks_are_called_in_the_documented_order_with_actors(tmp_path: Path) -> None:
    with opened(tmp_path / "run", "impala", "deterministic=false") as run:
        followed(run, "impala")


@pytest.mark.slow
def test_hooks_get_what_they_are_for(tmp_path: Path) -> None:
    got: dict[str, list[Any]] = {name: [] for name in ("start", "step", "episode", "checkpoint", "before")}

    def checkpoint(epoch: int, env_step: int, gradient_step: int) -> Path:
        assert not [row for row in rows(tmp_path / "run", "eval") if int(float(row["step"])) == env_step]
        assert snapshot.load(tmp_path / "run/snapshot.pt")["progress"]["step"] <= env_step
        got["checkpoint"].append((epoch, env_step, gradient_step))
        return tmp_path / f"{epoch}.pt"

    hooks = Hooks(
        on_epoch_start=lambda *a: got["start"].append(a),
        on_step=lambda step: got["step"].append(step),
        on_episode_end=lambda episode: got["episode"].append(episode),
        save_checkpoint=checkpoint,
        before_eval=lambda *a: got["before"].append(a),
    )
    with opened(tmp_path / "run") as run:
        told = list(run.epochs(hooks))
    assert got["start"] == [(1, 0), (2, 80), (3, 160)]
    assert got["step"] == list(range(240))
    assert got["before"] == [(0, 0), (1, 80), (2, 160), (3, 240)]
    assert [c[:2] for c in got["checkpoint"]] == [(1, 80), (2, 160), (3, 240)]
    assert [c[2] for c in got["checkpoint"]] == [epoch.gradient_step for epoch in told] == [10, 50, 90]
    assert [epoch.checkpoint for epoch in told] == [tmp_path / f"{i}.pt" for i in (1, 2, 3)]
    table = rows(tmp_path / "run", "train")
    assert [e.total for e in got["episode"]] == [float(row["episode_reward"]) for row in table]
    assert got["episode"][0] == EpisodeStats(30, 0, float(table[0]["episode_reward"]), 60, None)


@pytest.mark.slow
def test_the_statistics_of_an_epoch(tmp_path: Path) -> None:
    losses: list[float] = []
    with opened(tmp_path / "run") as run:
        log = run.logger.log_metrics

        def noted(metrics: Any, frame: int, ty: str) -> None:
            losses.extend(float(metrics[name]) for name in metrics if name == "critic_loss")
            log(metrics, frame, ty)

        run.logger.log_metrics = noted  # type: ignore[method-assign]
        told = list(run.epochs())
        summary = run.epoch.summary()
    table = rows(tmp_path / "run", "train")
    assert [epoch.collect.env_steps for epoch in told] == [80, 80, 80]
    assert [epoch.collect.episodes for epoch in told] == [2, 3, 3]
    first = [float(row["episode_reward"]) for row in table[:2]]
    assert told[0].collect.return_mean == pytest.approx(np.mean(first))
    assert told[0].collect.length_mean == 60
    assert [epoch.train.gradient_steps for epoch in told] == [10, 40, 40]
    assert set(told[1].train.losses) == {"critic_loss", "actor_loss"}
    assert told[1].train.losses.items() <= told[1].train.metrics.items()
    assert len(losses) == 90
    assert told[-1].train.losses["critic_loss"] == pytest.approx(np.mean(losses))  # of the last hundred
    assert told[0].eval is not None
    assert told[0].eval.episodes == 2
    assert told[0].eval.return_min <= told[0].eval.return_mean <= told[0].eval.return_max
    assert all(epoch.train.seconds > 0 and epoch.collect.seconds > 0 for epoch in told)
    json.dumps([asdict(epoch) for epoch in told])
    assert (summary.epochs, summary.env_step, summary.frame, summary.gradient_step) == (3, 240, 480, 90)
    assert summary.episode == 8
    assert summary.stopped is False
    assert summary.update_seconds == pytest.approx(sum(epoch.train.seconds for epoch in told), rel=0.01)
    json.dumps(asdict(summary))


@pytest.mark.slow
def test_what_a_hook_raises_ends_the_run_after_a_snapshot(straight: Path, tmp_path: Path) -> None:
    for name, at in (("on_step", 100), ("before_eval", 2), ("stop", 2)):
        calls = iter(range(1000))

        def fail(*_: Any, at: int = at, calls: Any = calls) -> Any:
            if next(calls) == at:
                raise KeyError("my own mistake")

        folder = tmp_path / name
        with opened(folder) as run, pytest.raises(KeyError, match="own mistake"):
            run.train(Hooks(**{name: fail}))
        with opened(folder) as run:
            assert run.global_frame > 0
            run.train()
        assert rows(folder, "train") == rows(straight, "train")
        assert rows(folder, "eval") == rows(straight, "eval")


@pytest.mark.slow
def test_transform_reward_changes_what_is_learnt_from_not_what_is_logged(tmp_path: Path) -> None:
    plain = command_line(tmp_path / "plain", *TASKS, tasks(LONG))
    with opened(tmp_path / "run", "multitask", tasks(LONG)) as run:
        run.train(Hooks(transform_reward=lambda rewards: 10 * rewards - 1))
    for one, other in zip(episodes(plain), episodes(tmp_path / "run"), strict=True):
        assert np.array_equal(other["reward"][1:], 10 * one["reward"][1:] - 1)
    own = [float(row["episode_reward"]) for row in rows(plain, "train")]
    assert [float(row["episode_reward"]) for row in rows(tmp_path / "run", "train")] == own


@pytest.mark.parametrize("wrong", [lambda rewards: rewards * np.nan, lambda rewards: np.zeros(7)])
@pytest.mark.parametrize("regime", ["drqv2", "ppo", "impala"])
def test_transform_reward_must_return_rewards(regime: str, wrong: Any, tmp_path: Path) -> None:
    with opened(tmp_path / "run", regime) as run, pytest.raises(UserError, match="transform_reward returned"):
        run.train(Hooks(transform_reward=wrong))


@pytest.mark.slow
def test_hooks_that_are_never_called_are_refused(tmp_path: Path) -> None:
    with opened(tmp_path / "offline", "offline") as run, pytest.raises(UserError, match="regime=offline"):
        run.train(Hooks(transform_reward=lambda rewards: rewards))
    with opened(tmp_path / "run", "drqv2", "eval_every_frames=null") as run:
        with pytest.raises(UserError, match="stop is never called"):
            run.train(Hooks(stop=good_enough(5)))
        run.train(Hooks(on_step=lambda _: None))


@pytest.mark.parametrize("regime", ["ppo", "impala"])
def test_transform_reward_reaches_on_policy_learners(regime: str, tmp_path: Path) -> None:
    seen: list[np.ndarray] = []
    with opened(tmp_path / "run", regime) as run:
        agent: Any = run.agent
        update = agent.update

        def noted(batches: Any, step: int) -> Any:
            batch = dict(next(batches))
            seen.append(np.asarray(batch["rewards"]))
            return update(iter([batch]), step)

        agent.update = noted
        run.train(Hooks(transform_reward=lambda rewards: np.where(rewards > 0, 7.0, rewards)))
    assert {7.0} <= set(np.unique(seen)) <= {0.0, 7.0}
    returns = [float(row["episode_reward"]) for row in rows(tmp_path / "run", "train") if row["episode_reward"]]
    assert max(returns) < 200  # CartPole's own: one for each step


# How runs end


def good_enough(at: int) -> Callable[[EvalStats], bool]:
    return lambda stats: stats.env_step >= at


@pytest.mark.parametrize("regime", REGIMES)
def test_a_stop_hook_ends_the_run(regime: str, tmp_path: Path) -> None:
    with opened(tmp_path / "run", regime) as run:
        told = list(run.epochs(Hooks(stop=good_enough(40))))
        assert [epoch.stopped for epoch in told] == [False] * (len(told) - 1) + [True]
        assert run.epoch.summary().stopped
    saved = snapshot.load(tmp_path / "run/snapshot.pt")["progress"]
    assert saved["epoch"] == len(told)
    assert saved["step"] == told[-1].env_step < run.num_frames // run.action_repeat


@pytest.mark.slow
def test_stop_return_ends_the_run_for_good(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # An episode of Long has a return of 55.
    done = command_line(tmp_path / "run", *TASKS, tasks(LONG), "stop_return=55")
    assert [row["frame"] for row in rows(done, "eval")] == ["0", "60"]
    assert "stopped at frame 60" in capsys.readouterr().out
    command_line(done, *TASKS, tasks(LONG), "stop_return=55")
    assert "stop_return=55.0 reached" in capsys.readouterr().out
    command_line(done, *TASKS, tasks(LONG), "stop_return=null")
    assert [row["frame"] for row in rows(done, "eval")] == ["0", "60", "120"]


def test_a_run_that_stop_return_has_ended_needs_no_replay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        done = command_line(tmp_path / "run", *TASKS, tasks(LONG), "stop_return=55", "keep_replay=false")
        assert not (done / "buffer").exists()
    assert "nothing left to do: stop_return=55.0 reached, and the run's replay is deleted" in capsys.readouterr().out


def test_a_training_return_calls_for_an_evaluation_which_decides(tmp_path: Path) -> None:
    overrides = [tasks(LONG), "stop_return=55", "test_in_train=true", "eval_every_frames=100"]
    with opened(tmp_path / "run", "multitask", *overrides) as run:
        (epoch,) = run.epochs()
    assert (epoch.frame, epoch.stopped) == (10, True)  # Long's first episode
    asked: list[int] = []

    def stop(stats: EvalStats) -> bool:
        asked.append(stats.episodes)
        return stats.episodes == 1  # training episodes: good enough; evaluations: never

    overrides[1] = "stop_return=null"
    with opened(tmp_path / "other", "multitask", *overrides, "num_train_frames=30") as run:
        told = list(run.epochs(Hooks(stop=stop)))
    assert [epoch.frame for epoch in told] == [10, 20, 30]
    assert not any(epoch.stopped for epoch in told)
    assert asked == [1, 2] * 3


def test_a_training_return_of_several_tasks_is_that_of_the_learnt_ones(tmp_path: Path) -> None:
    asked: list[EvalStats] = []

    def stop(stats: EvalStats) -> bool:
        asked.append(stats)
        return False

    overrides = [tasks(LONG, SHORT_TASK), f"exclude_tasks=[{SHORT_TASK}]", "test_in_train=true", "eval_at_start=false"]
    with opened(tmp_path / "run", "multitask", *overrides) as run:
        list(run.epochs(Hooks(stop=stop)))
    trained = [stats for stats in asked if stats.seconds == 0]
    assert len(trained) == 12  # Long's episodes; those of the other task alone are never asked about
    assert {stats.return_mean for stats in trained} == {55.0}
    assert set(trained[1].metrics) >= {"episode_reward/Long-v0", "episode_reward/Short-v0", "duration"}


@pytest.mark.slow
def test_the_best_evaluation_is_a_strict_increase_of_the_score(tmp_path: Path) -> None:
    scores, best = iter([1.0, 1.0, 3.0, 2.0]), list[int]()
    with opened(tmp_path / "run", "drqv2", "save_best=true") as run:
        hooks = Hooks(score=lambda _: next(scores), save_best=lambda stats: best.append(stats.frame))
        told = list(run.epochs(hooks))
    assert best == [0, 320]
    assert [epoch.improved for epoch in told] == [False, True, False]
    assert (told[-1].best_score, told[-1].best_frame, told[-1].score) == (3.0, 320, 2.0)
    kept = snapshot.load(tmp_path / "run/best.pt")
    assert kept["frame"] == 320
    assert set(kept) == set(snapshot.load(tmp_path / "run/weights_0.pt"))


def test_a_score_that_is_no_number_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path / "run") as run, pytest.raises(UserError, match="score returned nan at frame 0"):
        run.train(Hooks(score=lambda _: float("nan")))


# Keys


@pytest.mark.slow
def test_evaluations_can_be_left_out(tmp_path: Path) -> None:
    with opened(tmp_path / "run", "drqv2", "eval_every_frames=null", "epoch_frames=200") as run:
        told = list(run.epochs())
    assert [(epoch.frame, epoch.eval) for epoch in told] == [(200, None), (400, None), (480, None)]
    assert not (tmp_path / "run/eval.csv").exists()
    with opened(tmp_path / "other", "drqv2", "eval_at_start=false") as run:
        run.train()
    assert [row["frame"] for row in rows(tmp_path / "other", "eval")] == ["160", "320", "480"]


@pytest.mark.slow
def test_an_epoch_may_be_shorter_than_the_interval_of_evaluations(tmp_path: Path) -> None:
    with opened(tmp_path / "run", "drqv2", "epoch_frames=100", "eval_every_frames=200") as run:
        told = list(run.epochs())
    assert [epoch.frame for epoch in told] == [100, 200, 300, 400, 480]
    assert [epoch.eval is not None for epoch in told] == [False, True, False, True, True]
    with opened(tmp_path / "other", "ppo", "epoch_frames=100", "eval_every_frames=300") as run:  # 48 steps an update
        told = list(run.epochs())
    assert [epoch.frame for epoch in told if epoch.eval] == [336, 624, 912, 960]


@pytest.mark.parametrize(("override", "steps"), [("steps_per_collect=8", 8), ("episodes_per_collect=2", 20)])
def test_the_updates_due_are_made_in_rounds_after_each_collection(override: str, steps: int, tmp_path: Path) -> None:
    Recorder.made.clear()
    own = [tasks(LONG), "agent._target_=tests.task_run.Recorder", override, "eval_every_frames=null"]
    counts: list[int] = []
    with opened(tmp_path / "run", "multitask", *own) as run:
        run.train(Hooks(on_step=lambda _: counts.append(len(Recorder.made[-1].steps))))
    made = [(step, number) for step, number in enumerate(np.diff(counts).tolist()) if number]
    assert {number for _, number in made[1:]} == {steps}
    assert set(np.diff([step for step, _ in made]).tolist()) == {steps}
    learnt_at = Recorder.made[-1].steps
    assert learnt_at == list(range(20, 20 + len(learnt_at)))  # after the seed frames, each step once


def test_ppo_collects_and_repeats_as_told(tmp_path: Path) -> None:
    with opened(tmp_path / "run", "ppo", "segments=null", "steps_per_collect=96", "repeat_per_collect=3") as run:
        assert run.round_steps == 96
        epoch: EpochStats = next(run.epochs())
    # Minibatches of 24 steps; the first batch only begins the statistics.
    assert epoch.gradient_step == (epoch.env_step // 96 - 1) * 12


@pytest.mark.parametrize(
    ("regime", "overrides", "message"),
    [
        ("drqv2", ["stop_return=5", "eval_every_frames=null"], "stop_return=5.0 with eval_every_frames=null"),
        ("drqv2", ["save_best=true", "eval_every_frames=null"], "needs evaluations"),
        ("drqv2", ["steps_per_collect=4", "episodes_per_collect=1"], "give only one"),
        ("drqv2", ["steps_per_collect=1000"], "steps_per_collect=1000: must be at most"),
        ("drqv2", ["updates_per_step=1e-6"], "updates_per_step=1e-06: gives no update in"),
        ("drqv2", ["epoch_frames=200"], "epoch_frames=200: must be at most eval_every_frames=160"),
        ("drqv2", ["epoch_frames=1"], "epoch_frames=1: shorter than one agent step"),
        ("ppo", ["segments=null", "steps_per_collect=50"], "multiple of horizon=8"),
        ("ppo", ["steps_per_collect=96"], "steps_per_collect=96 and segments=6"),
        ("impala", ["steps_per_collect=96"], "choose that regime"),
        ("offline", ["episodes_per_collect=1"], "applies only to then=drqv2"),
        ("drqv2", ["hydra.run.dir=x"], "pass the directory to make_workspace"),
        ("drqv2", ["num_train_framse=5"], "num_train_framse"),
    ],
)
def test_what_cannot_be_is_refused(regime: str, overrides: list[str], message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)) as refused:
        train.compose(*short(regime), *overrides)
    assert len(str(refused.value).splitlines()) <= 2


def test_test_in_train_needs_something_to_compare_with(tmp_path: Path) -> None:
    with opened(tmp_path / "run", "drqv2", "test_in_train=true") as run, pytest.raises(UserError, match="stop_return"):
        run.train()


def test_compose_takes_values_of_any_kind(tmp_path: Path) -> None:
    cfg = train.compose(
        "agent.hidden_dim=8",
        regime="multitask",
        tasks=["walker_walk", "cheetah_run"],
        per_task={"cheetah_run": {"action_repeat": 4}},
        experiment="with = and, a comma",
        stop_return=None,
        save_video=False,
        seed=7,
        lr=1e-3,
        agent_dir=tmp_path,
    )
    assert list(cfg.tasks) == ["walker_walk", "cheetah_run"]
    assert train.compose(task="fish_swim").num_train_frames == 3_100_000
    assert cfg.per_task == {"cheetah_run": {"action_repeat": 4}}
    assert (cfg.experiment, cfg.stop_return, cfg.save_video) == ("with = and, a comma", None, False)
    assert (cfg.seed, cfg.agent.lr, cfg.agent.hidden_dim, cfg.agent_dir) == (7, 1e-3, 8, str(tmp_path))


@pytest.mark.slow
def test_a_resumed_run_does_not_need_the_weights_that_it_began_with(tmp_path: Path) -> None:
    command_line(tmp_path / "other", *PPO)
    weights = tmp_path / "weights.pt"
    weights.write_bytes((tmp_path / "other/weights_0.pt").read_bytes())
    with opened(tmp_path / "run", "ppo", f"init_from={weights}") as run:
        next(run.epochs())
        weights.unlink()
        with pytest.raises(UserError, match="cannot start over"):
            run.reset()
    with train.make_workspace(train.compose(resume=tmp_path / "run")) as run:
        assert run.train().epochs > 1


def test_a_new_run_gets_a_directory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with train.make_workspace(train.compose(*PPO)) as run:
        assert run.work_dir.parent.parent == tmp_path / "exp_local"
        assert run.work_dir.name.endswith("CartPole-v1_1")
