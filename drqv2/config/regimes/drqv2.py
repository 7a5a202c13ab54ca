"""DrQ-v2: its keys, whose defaults are in cfgs/regime/drqv2.yaml, its agents, its rules."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from drqv2.config.dm_control import episode_frames
from drqv2.config.keys import free, key, table
from drqv2.config.kinds import FRACTION, POSITIVE, Bool, Choice, Float, Int, Schedule
from drqv2.config.regime import Agent, Regime
from drqv2.errors import UserError

LENGTH = table(
    num_train_frames=free(Int(1), "Length of the run.", "frames"),
    num_seed_frames=key(Int(0), "Frames collected before the first update.", "frames"),
)
RECORDS = table(
    save_train_video=free(Bool(), "Film training episodes as the agent sees them."),
    train_video_every_frames=free(Int(1), "Interval between training videos; at least action_repeat.", "frames"),
    diagnostics_every_frames=free(
        Int(1),
        "Interval between gradient norms, dormant units, Q against returns; at least action_repeat.",
        "frames",
    ),
)
REPLAY = table(
    replay_buffer_size=key(Int(1), "Capacity, of all tasks together; at least one episode of each.", "transitions"),
    replay_buffer_num_workers=free(Int(0, 8), "Processes that load batches; 0 loads them in the main process."),
    replay_device=free(
        Choice("auto", "disk", "cuda"),
        "Where batches are gathered from: episode files through the page cache, or a copy of their frames in GPU "
        "memory. auto: GPU memory, if the learner is on the GPU and the frames take at most 60 % of what is free.",
    ),
    nstep=key(Int(1), "Rewards summed before the bootstrap.", "agent steps"),
    batch_size=key(Int(1), "Transitions in one update, or segments for an agent that asks for them.", "transitions"),
    replay_fading=key(
        FRACTION,
        "Factor by which a transition is drawn more rarely for each one that came after it, down to a tenth.",
        null="all are drawn alike",
        legacy=None,
    ),
    replay_by_reward=key(
        Float(0, 1),
        "Share of a batch that is drawn by reward: equally many of each of eight levels from the least to the "
        "greatest, fewer of one with fewer transitions than a batch.",
        legacy=0.0,
    ),
    keep_replay=free(Bool(), "Keep the stored episodes when the run has reached its end."),
)
LEARNER = table(
    steps_per_collect=key(
        Int(1),
        "Agent steps collected between two rounds of updates.",
        "agent steps",
        null="one of each environment",
        legacy=None,
    ),
    episodes_per_collect=key(
        Int(1),
        "Episodes collected between two rounds of updates.",
        "episodes",
        null="as steps_per_collect",
        legacy=None,
    ),
    lr=key(POSITIVE, "Learning rate of Adam, for encoder, actor and critic; agent=spq: not encoder."),
    feature_dim=key(Int(1), "Width of the trunks behind the encoder.", "units"),
    stddev_schedule=key(
        Schedule(),
        "Standard deviation of the exploration noise; durations in agent steps. agent=spq and drq_sac learn theirs.",
    ),
    updates_per_step=key(POSITIVE, "Calls of agent.update for each agent step, on average.", "calls"),
    seed_updates=key(Int(0), "Calls of agent.update made at once when the agent first learns.", "calls", legacy=0),
)
KEYS = {"Length": LENGTH, "Replay": REPLAY, "Learner": LEARNER, "Records": RECORDS}
DRQV2 = Agent("drqv2.agents.drqv2.DrQV2Agent", continuous=True)
SPQ = Agent("drqv2.agents.spq.SPQAgent", compiles=("cuda",), continuous=True)
DRQ_SAC = Agent("drqv2.agents.drq_sac.DrQSACAgent", compiles=("cuda",), continuous=True)
OTHER_LENGTH = ("env._target_", "env.time_limit", "max_episode_steps")  # with one of them, episodes have another


def check(cfg: Mapping[str, Any]) -> None:
    """Check that a run collects, learns, and keeps at least an episode of its task."""
    check_learning(cfg)
    task, size = cfg["task_name"], cfg["replay_buffer_size"]
    least = math.ceil(episode_frames(task) / cfg["action_repeat"])
    # The length of other environments' episodes is unknown; stored episodes may be shorter.
    known = all(cfg.get(name) is None for name in (*OTHER_LENGTH, "env_id"))
    if known and size != "auto" and size < least:
        raise UserError(
            f"replay_buffer_size={size}: smaller than one episode of {task}; must be at least {least} (transitions: "
            f"{episode_frames(task)} frames at action_repeat={cfg['action_repeat']})"
        )


def check_learning(cfg: Mapping[str, Any]) -> None:
    """Check that a run that is long enough to learn does so at all."""
    steps, episodes, rate = cfg["steps_per_collect"], cfg["episodes_per_collect"], cfg["updates_per_step"]
    if steps is not None and episodes is not None:
        raise UserError(f"steps_per_collect={steps} and episodes_per_collect={episodes}: give only one of them")
    learning = (cfg["num_train_frames"] - cfg["num_seed_frames"]) // cfg["action_repeat"]  # agent steps
    if steps is not None and 0 < learning < steps:
        raise UserError(f"steps_per_collect={steps}: must be at most {learning}, the agent steps after num_seed_frames")
    if learning > 0 and learning * rate < 1 and not cfg["seed_updates"]:
        raise UserError(f"updates_per_step={rate}: gives no update in the {learning} agent steps after num_seed_frames")
    if rate % 1 and cfg.get("agent.update_every_steps", 1) != 1:
        raise UserError(
            f"updates_per_step={rate}: a fraction needs agent.update_every_steps=1; otherwise the agent would ignore "
            "some of its updates"
        )


REGIME = Regime(
    name="drqv2",
    purpose="DrQ-v2, off-policy learning from pixels",
    workspace="train:Workspace",
    agents={"drqv2": DRQV2, "spq": SPQ, "drq_sac": DRQ_SAC},
    keys=KEYS,
    check=check,
)
