"""Rollouts against a loop; weights that several processes share; batches of rollouts."""

from __future__ import annotations

import threading
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from drqv2.agents.segments import Segments
from drqv2.errors import UserError
from drqv2.rollout.batches import stack
from drqv2.rollout.shared import SharedArrays, SharedWeights
from drqv2.rollout.unroll import Unroller, rollout_layout
from tests.rollout import cartpole

ENVS, LENGTH = 3, 5


@pytest.mark.parametrize("lstm", [False, True])
def test_rollouts_overlap_by_one_step_and_equal_a_loop(lstm: bool) -> None:
    env, policy = cartpole.vector(ENVS), cartpole.policy(lstm)
    generator = torch.Generator().manual_seed(1)

    def choose(obs, state, first):
        actions, log_probs, _, after = policy.choose(obs, state, first, generator)
        return actions, log_probs, after

    unroller = Unroller(env, choose, policy.initial_state(ENVS))
    unroller.start(env.reset())
    layout = rollout_layout(env, policy.initial_state(ENVS), LENGTH)
    episodes, rollouts = [], []
    for _ in range(4):
        out = {name: np.zeros(shape, dtype) for name, (shape, dtype) in layout.items()}
        episodes += unroller.fill(out)[0]
        rollouts.append(out)
    for before, after in pairwise(rollouts):
        for name in ("obs", "rewards", "terminated", "truncated", "first"):
            np.testing.assert_array_equal(before[name][:, -1], after[name][:, 0])
    steps = {n: np.concatenate([r[n][:, : LENGTH if k < 3 else None] for k, r in enumerate(rollouts)], 1) for n in out}
    assert steps["rewards"].shape == (ENVS, 4 * LENGTH + 1)
    batch = Segments(**stack([{n: r[n] for n in r} for r in rollouts], torch.device("cpu")))
    with torch.no_grad():
        dist, *_ = policy(batch.obs, batch.state, batch.first)
    got = dist.log_prob(batch.actions.reshape(*batch.rewards.shape, -1))[:, :-1]
    torch.testing.assert_close(got, batch.log_probs[:, :-1])  # unrolled from the stored states, as when acting
    over = steps["terminated"] | steps["truncated"]
    expected = []
    for e in range(ENVS):
        total, length = 0.0, -1
        for t in range(over.shape[1]):
            total, length = total + steps["rewards"][e, t], length + 1
            if over[e, t]:
                expected.append((float(total), length))
                total, length = 0.0, -1
    assert sorted(episodes) == sorted(expected)


def test_readers_get_whole_versions() -> None:
    module = nn.Linear(300, 300)
    with torch.no_grad():
        for p in module.parameters():
            p.zero_()
    weights = SharedWeights(module)
    mine, seen, stop = nn.Linear(300, 300), [], threading.Event()

    def read() -> None:
        while not stop.is_set():
            version = weights.read(mine)
            values = {float(x) for p in mine.parameters() for x in (p.detach().min(), p.detach().max())}
            seen.append((version, values))

    reader = threading.Thread(target=read)
    reader.start()
    with torch.no_grad():
        for version in range(1, 400):  # far faster than updates
            for p in module.parameters():
                p.fill_(version)
            assert weights.publish(module) == version
    stop.set()
    reader.join()
    assert all(values == {float(version)} for version, values in seen)
    assert weights.read(mine) == 399
    assert len({version for version, _ in seen}) > 1


def test_too_little_shared_memory_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drqv2.rollout.shared.shutil.disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    with pytest.raises(UserError, match=r"need 0 MB of shared memory, .* use a smaller num_buffers or unroll_length"):
        SharedArrays({"obs": ((100, 20), np.float32)})
