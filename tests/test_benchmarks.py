"""Each benchmark runs and prints what it promises, and its baseline computes what it is compared with.

No figure is compared with anything: machines differ.
"""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
from functools import partial
from itertools import count
from pathlib import Path

import mujoco
import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import common, env, env_parts, learner, memory, overlap, random_actions, replay, representation, spq
from benchmarks.alternation import alternate
from benchmarks.baseline import learner as plain
from benchmarks.baseline.loader import EpisodeStream, plain_loader
from drqv2.agents.drqv2 import DrQV2Agent
from drqv2.launch.compose import compose
from drqv2.nn.augmentation import RandomShiftsAug
from drqv2.system.machine import processor
from drqv2.utils import TruncatedNormal
from replay_buffer import ReplayBuffer, Request

ROOT = Path(__file__).resolve().parents[1]
MACHINE = {"cpu", "cores", "torch_threads", "gpu", "renderer", "load", "python", "torch", "mujoco", "dm-control"}
NETS = ("encoder", "actor", "critic", "critic_target")


class TestAlternate:
    def test_figures_come_round_by_round_and_warm_up_does_not_count(self) -> None:
        found = alternate({"a": partial(count, 1), "b": partial(count, 10, 10)}, 0.0, warm_up=2)
        assert found == {"a": [3, 4, 5], "b": [30, 40, 50]}

    def test_time_for_everything_ends_it_after_the_least(self) -> None:
        found = alternate({"a": partial(count, 1)}, float("inf"), within=0.0)
        assert found == {"a": [2, 3, 4]}

    def test_a_side_that_ends_ends_all(self) -> None:
        found = alternate({"a": partial(count, 1), "b": partial(iter, (1, 2, 3))}, float("inf"), warm_up=1)
        assert found == {"a": [2, 3], "b": [2, 3]}

    def test_each_side_has_one_process_of_its_own(self) -> None:
        where = partial(iter, os.getpid, None)
        found = alternate({"a": where, "b": where}, 0.0)
        assert len(set(found["a"])) == len(set(found["b"])) == 1
        assert set(found["a"]) != set(found["b"])

    def test_a_side_that_fails_is_named(self) -> None:
        with pytest.raises(RuntimeError, match=r"second: (.|\n)*no number"):
            alternate({"first": partial(count, 1), "second": partial(map, int, ["1", "no number"])}, 0.0)


def test_ratios_are_taken_round_by_round() -> None:
    row = common.compare([2.0, 40.0, 6.0], [1.0, 10.0, 1.0])
    assert row["ms"] == 1.0
    assert (row["ratio_25"], row["ratio"], row["ratio_75"]) == (3.0, 4.0, 5.0)
    assert row["repetitions"] == 3


SHAPES = learner.Shapes(batch_size=8, channels=9, image_size=40, feature_dim=10, hidden_dim=24, actions=3)


def two_agents(pad: int, stddev: float) -> tuple[plain.PlainDrQV2, DrQV2Agent]:
    """The baseline and ours, with the same weights."""
    torch.manual_seed(0)
    shape = (SHAPES.channels, SHAPES.image_size, SHAPES.image_size)
    ours = DrQV2Agent(
        shape, (SHAPES.actions,), "cpu", 1e-4, SHAPES.feature_dim, SHAPES.hidden_dim, 0.01, 0, 1, stddev, 0.3, True
    )
    ours.aug = RandomShiftsAug(pad)
    baseline = plain.PlainDrQV2(
        shape, SHAPES.actions, "cpu", SHAPES.feature_dim, SHAPES.hidden_dim, stddev=stddev, pad=pad
    )
    with torch.no_grad():
        for param in ours.critic_target.parameters():  # a target of its own, or else a wrong choice would not show
            param.mul_(0.9)
    for net in NETS:
        getattr(baseline, net).load_state_dict(getattr(ours, net).state_dict())
    return baseline, ours


class TestLearner:
    def test_the_baseline_makes_the_same_update(self) -> None:
        baseline, ours = two_agents(pad=0, stddev=0.0)
        before = {net: [p.clone() for p in getattr(ours, net).parameters()] for net in NETS}
        for step in range(3):
            batch = learner.random_batch(SHAPES)
            expected = {name: float(value) for name, value in ours.update(iter([batch]), step).items()}
            got = baseline.update(iter([batch]), step)
            compared = {k for k in expected if np.isfinite(expected[k])}  # without noise a density is infinite
            assert {"critic_loss", "actor_loss", "critic_target_q"} <= compared
            assert {k: got[k] for k in compared} == pytest.approx({k: expected[k] for k in compared}, rel=1e-4)
        for net in NETS:
            pairs = zip(getattr(ours, net).named_parameters(), getattr(baseline, net).parameters(), strict=True)
            for old, ((name, param), plain_param) in zip(before[net], pairs, strict=True):
                moved = (param - old).abs().sum()
                assert moved > 0, (net, name)
                assert (param - plain_param).abs().sum() < 1e-2 * moved, (net, name)

    def test_noise_is_alike(self) -> None:
        mean = torch.linspace(-1, 1, 60).reshape(20, 3).requires_grad_()
        for clip in (None, 0.3):
            torch.manual_seed(1)
            ours = TruncatedNormal(mean, torch.full_like(mean, 0.4)).sample(clip=clip)
            torch.manual_seed(1)
            noisy = plain.noisy(mean, 0.4, clip)
            torch.testing.assert_close(noisy, ours)
            for sample in (ours, noisy):
                (grad,) = torch.autograd.grad(sample.sum(), mean)
                assert torch.equal(grad, torch.ones_like(mean))

    def test_shifts_are_crops_of_the_padded_image(self) -> None:
        images = torch.randint(0, 256, (81, 9, 84, 84)).float()
        offsets = torch.cartesian_prod(torch.arange(9), torch.arange(9))
        shifted = plain.shifted(images, 4, offsets)
        padded = np.pad(images.numpy(), ((0, 0), (0, 0), (4, 4), (4, 4)), mode="edge")
        for image, result, (right, down) in zip(padded, shifted, offsets.tolist(), strict=True):
            crop = torch.from_numpy(image[:, down : down + 84, right : right + 84])
            torch.testing.assert_close(result, crop, rtol=0.0, atol=0.01)  # grey levels
        torch.manual_seed(0)
        changed = plain.random_shift(images[:40], 4).sub(images[:40]).abs().amax(dim=(1, 2, 3)) > 1
        assert changed.sum() > 30

    def test_the_noise_shrinks_on_the_schedule(self) -> None:
        agent = plain.PlainDrQV2((9, 40, 40), 1, feature_dim=4, hidden_dim=8)
        assert [agent.stddev_at(s) for s in (0, 50_000, 100_000, 200_000)] == pytest.approx([1.0, 0.55, 0.1, 0.1])

    def test_the_work_of_an_update_is_what_torch_counts(self) -> None:
        baseline, _ = two_agents(pad=4, stddev=0.2)
        batch = learner.random_batch(SHAPES)
        with FlopCounterMode(display=False) as counter:
            baseline.update(iter([batch]), 0)
        # The baseline has the actor's loss collect gradients for the critic's weights too, which nobody uses.
        weights = sum(p.numel() for p in baseline.critic.parameters() if p.ndim == 2)
        assert counter.get_total_flops() == learner.update_flop(SHAPES) + 2 * SHAPES.batch_size * weights

    def test_the_papers_update(self) -> None:
        assert learner.update_flop(learner.PAPER) == pytest.approx(101e9, rel=0.01)


class TestReplay:
    def test_the_baseline_gives_the_same_samples(self, tmp_path: Path) -> None:
        storage = replay.fill(tmp_path, episodes=2, length=7)
        replay.stack_episodes(storage)
        stream = EpisodeStream(tmp_path)
        stream.load(0, 1)
        buffer = ReplayBuffer(tmp_path, nstep=3, discount=0.99)
        for number, episode in enumerate(stream.episodes.values()):
            for t in range(5):
                ours = buffer[Request(0, np.array([number]), np.array([t]))]
                for got, expected in zip(stream.sample(episode, t), ours, strict=True):
                    assert got.dtype == expected[0].numpy().dtype
                    np.testing.assert_allclose(got, expected[0].numpy(), rtol=1e-6)

    def test_batches_and_shares(self, tmp_path: Path) -> None:
        replay.stack_episodes(replay.fill(tmp_path, episodes=3, length=5))
        obs, action, reward, discount, next_obs = next(iter(plain_loader(tmp_path, 4, workers=0)))
        assert (obs.shape, obs.dtype) == ((4, 9, 84, 84), torch.uint8) == (next_obs.shape, next_obs.dtype)
        assert (action.shape, reward.shape, discount.shape) == ((4, 6), (4, 1), (4, 1))
        seen = [EpisodeStream(tmp_path) for _ in range(2)]
        for number, stream in enumerate(seen):
            stream.load(number, 2)
        assert [[path.stem for path in stream.episodes] for stream in seen] == [["00000000", "00000002"], ["00000001"]]

    def test_replay_in_the_memory_of_a_device(self, tmp_path: Path) -> None:
        replay.fill(tmp_path, episodes=2, length=7)
        times = replay.batches(tmp_path, workers=0, block=2, replay_device="cpu")
        assert next(times) > 0
        times.close()

    def test_frames_are_all_different(self, tmp_path: Path) -> None:
        storage = replay.fill(tmp_path, episodes=2, length=20)
        frames = np.concatenate([storage.load_episode(e)["frame"] for e in range(2)])
        assert len({frame.tobytes() for frame in frames}) == len(frames) == 42


# Small and large physics, another camera, another suite.
SLOW_TASKS = ("humanoid_walk", "quadruped_run", "reach_duplo")


@pytest.mark.parametrize("task", ["cartpole_balance", *(pytest.param(t, marks=pytest.mark.slow) for t in SLOW_TASKS)])
def test_the_baselines_pixels_are_ours(task: str) -> None:
    baseline, ours = env.make("baseline", task), env.make("ours", task)
    rng = np.random.default_rng(0)
    pairs = [(baseline.reset(), ours.reset())]
    for _ in range(6):
        action = rng.integers(-64, 65, ours.action_spec().shape).astype(np.float32) / 64
        pairs.append((baseline.step(action), ours.step(action)))
    assert not np.array_equal(pairs[0][0].observation, pairs[-1][0].observation)
    for plain_step, step in pairs:
        np.testing.assert_array_equal(plain_step.observation, step.observation)
        assert plain_step.reward is None or plain_step.reward == pytest.approx(step.reward, rel=1e-6)
    baseline.close()
    ours.close()


def test_the_parts_of_a_step_are_the_step() -> None:
    functions = mujoco.mjv_updateScene, mujoco.mjr_render, mujoco.mjr_readPixels
    ours = env.make("ours", "cartpole_balance")
    ours.reset()
    with env_parts.parts_of(ours) as step:
        parts = [step(np.zeros(1, np.float32)) for _ in range(3)]
    for found in parts:
        assert set(found) == {*env_parts.PARTS, "rest", "step"}
        assert all(ms > 0 for ms in found.values())
        assert sum(found.values()) == pytest.approx(2 * found["step"])
    assert (mujoco.mjv_updateScene, mujoco.mjr_render, mujoco.mjr_readPixels) == functions
    ours.step(np.zeros(1, np.float32))
    ours.close()


@pytest.mark.slow
def test_a_step_here_and_in_a_process() -> None:
    row = env_parts.task_row("cartpole_balance", rounds=1)
    assert row["repetitions"] == env_parts.STEPS
    assert row["process_ms"] == pytest.approx(row["step_ms"] + row["pipe_ms"])


@pytest.mark.slow
def test_the_first_run_with_overlap() -> None:
    row = next(overlap.rows(quick=True))
    assert (row["num_envs"], row["overlap"], row["ratio"]) == (1, True, 1.0)
    assert 0 < row["fps_25"] <= row["fps"] <= row["fps_75"]


def test_memory_is_that_of_all_processes() -> None:
    before = memory.resident_mb()["RssAnon"]
    code = "import sys; x = bytearray(200_000_000); x[::4096] = b'1' * 48829; print(flush=True); sys.stdin.read()"
    command = ["sh", "-c", f'{sys.executable} -c "{code}"; exit 0']  # a grandchild
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stdout
        process.stdout.readline()
        during = memory.resident_mb()["RssAnon"]
        process.stdin.close()
    assert 195 < during - before < 260
    with mmap.mmap(-1, 100_000_000, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as room:  # not what malloc has kept
        for page in range(0, len(room), mmap.PAGESIZE):
            room[page] = 1
        assert memory.resident_mb()["RssAnon"] - before > 95


TIMED = {"ms", "ms_25", "ms_75", "ratio", "ratio_25", "ratio_75", "repetitions", "limit_ms", "times_limit"}
SPEED = {"fps", "fps_25", "fps_75", "ratio", "ratio_25", "ratio_75", "repetitions"}
PRECISIONS = ["fp32", "bf16"] if torch.cuda.is_available() or processor()[1] != "emulated" else ["fp32"]
LEARNERS = ["baseline", *(p + " graph" * torch.cuda.is_available() for p in PRECISIONS)]
KEYS = {
    "learner": {"side", "device", "batch_size", "gflop"} | TIMED,
    "replay": {"side", "workers", "batch_size"} | TIMED,
    "env": {"task", "baseline_ms", "ms", "ratio", "ratio_25", "ratio_75", "render_ms", "limit_ms", "times_limit"},
    "loop": {"side", "task", "batch_size"} | SPEED,
    "snapshots": {"snapshots", "ms", "ms_25", "ms_75", "lost", "lost_25", "lost_75", "share_percent", "repetitions"},
    "display": {"part", "ms", "ms_25", "ms_75", *(f"share_at_{fps}_fps" for fps in (9, 100, 1000)), "repetitions"},
    "memory": {"side", "transitions", "workers", "batches", "seconds", "anonymous_mb", "growth_mb", "shared_mb"},
    "cold": {"state", "stored_mb", "limit_mb", "batch_size", "ms", "ms_25", "ms_75", "disk_mb", "repetitions"},
}
LOGS = ["an update's metrics", "an episode's row"]
SHOWN = ["the dashboard", "CPU and memory in it"]
CASES = {
    "learner": [LEARNERS],
    "replay": [
        ["baseline", "ours", "on the GPU", "segments on the GPU"]
        if torch.cuda.is_available()
        else ["baseline", "ours", "segments"]
    ],
    "env": [["cartpole_balance", "cheetah_run", "geometric mean"]],
    "loop": [["baseline", "train.py"]],
    "snapshots": [["none", "one"]],
    "display": [[*LOGS, *SHOWN, "all"]],
    "memory": [["replay", "replay and learner"]],
    "cold": [["warm", "evicted"], ["warm", "evicted", "limited"]],
}


@pytest.mark.slow
def test_all_benchmarks_hold_what_they_promise() -> None:
    """They run one after another, each in a process of its own; the result is a line of results/history.jsonl."""
    command = [sys.executable, "-m", "benchmarks.all", "--quick", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    results = json.loads(line)
    ratios = results.pop("ratios")
    assert {"learner, fp32", "replay, 1 workers", "environment", "whole loop"} <= set(ratios)
    assert all(isinstance(value, float) for value in ratios.values())
    assert {"time", "commit", "dirty"} <= set(results)
    assert set(results["machine"]) >= MACHINE
    for name, keys in KEYS.items():
        rows = results[name]
        assert [next(iter(row.values())) for row in rows] in CASES[name]
        for row in rows:
            assert set(row) - {"fast_ms", "fast_ratio"} == keys
            measured = {k: v for k, v in row.items() if k.endswith(("ms", "ratio", "fps")) and v is not None}
            assert all(value > 0 for value in measured.values())
            for key in set(measured) & {k.removesuffix("_25") for k in row if k.endswith("_25")}:
                assert row[f"{key}_25"] <= row[key] <= row[f"{key}_75"]
        if name in ("learner", "loop", "replay"):
            assert rows[0]["ratio"] == 1.0


def test_a_table_for_people(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks.replay"])
    common.main("replay", "batches", lambda quick: [{"side": "baseline", "ms": 1234.5}, {"side": "ours", "ms": None}])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("cpu ")
    assert [line.split() for line in lines[-4:]] == [
        ["replay:", "batches"],
        ["side", "ms"],
        ["baseline", "1,234"],
        ["ours", "-"],
    ]


@pytest.mark.slow
def test_spq_is_measured_beside_drqv2_and_in_parts() -> None:
    rows = spq.measure(quick=True)
    measured = ["spq_cpu", "cpu"]
    for overrides in spq.SIDES.values():  # also of the side that takes too long for a test
        compose(*overrides, "task=cheetah_run")
    whole = [f"{name}, whole run" for name in measured]
    other = {"fast": "fp32", "slow": "bf16"}.get(processor()[1])  # that precision=auto does not choose
    others = [f"{name}, {other}" for name in ("spq_cpu", "cpu") if other]
    parts = [*spq.PARTS.values(), "an action (not in the update)"]
    assert [row["side"] for row in rows] == [*measured, *others, *parts, *whole]
    assert all(row["ms"] > 0 for row in rows)
    assert all((row["fps"] is not None) == (row["side"] in whole) for row in rows)
    assert 50 < sum(row["percent"] or 0.0 for row in rows) < 150


@pytest.mark.slow
def test_the_representation_is_measured_from_random_actions() -> None:
    frames, actions, rewards, first = representation.experience("cartpole_balance", 520)
    assert (frames.shape, actions.shape, rewards.shape) == ((520, 3, 84, 84), (520, 1), (520,))
    assert list(np.flatnonzero(first)) == [0, 501]  # an episode has 500 agent steps, and one more observation
    assert rewards[500] == 0 < rewards[499]
    assert 0.2 < (actions[1:500] == actions[:499]).mean() < 0.8  # held
    rows = representation.measure("cartpole_balance", quick=True)
    assert [row["update"] for row in rows] == list(representation.QUICK_AT)
    assert all(0 <= row["infonce_hits"] <= 1 and row["latent_std"] > 0 for row in rows)


@pytest.mark.slow
def test_random_actions_are_counted_that_reach_a_reward() -> None:
    rows = random_actions.measure("pendulum_swingup", quick=True)
    assert [row["actions"] for row in rows] == list(random_actions.KINDS)
    assert all(row["percent"] in (0, 50, 100) for row in rows)
    assert all((row["percent"] > 0) == (row["best"] > 0) for row in rows)
    uniform, held = (random_actions.episodes("cartpole_balance", kind, 1)[0] for kind in ("uniform", "bang-bang, held"))
    assert len(uniform) == len(held) == 500
    assert uniform.sum() > held.sum()  # smaller actions keep the pole up for longer
