"""Learning from stored data: DrQ-v2's keys, and the data; their defaults are in cfgs/regime/offline.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drqv2.config.formatting import show
from drqv2.config.keys import fixed, free, key, table
from drqv2.config.kinds import Auto, Bool, Choice, Int, Text
from drqv2.config.regime import Agent, Regime
from drqv2.config.regimes import drqv2
from drqv2.config.regimes.shared import LARGEST_RENDER, SMALLEST_IMAGE
from drqv2.errors import UserError

DATA = table(
    data=fixed(
        Text(),
        "Episodes to learn from: a run's directory, one of episode files (this project's, .npz of the public DrQ-v2 or "
        "of V-D4RL, .hdf5 of V-D4RL or D4RL), one such file, or minari:NAME. They are not changed.",
        null="must be given",
    ),
    clip_actions=fixed(
        Bool(), "Clip the data's actions to [-1, 1], instead of refusing data with others.", legacy=False
    ),
    then=free(Choice("drqv2"), "What the run continues with after offline_frames.", null="nothing: it ends"),
    offline_frames=free(
        Int(1),
        "Length of learning from stored data, in updates times action_repeat.",
        "frames",
        null="num_train_frames",
    ),
)
# These mean something else where the data are given.
TASK = table(
    image_size=fixed(
        Auto(Int(SMALLEST_IMAGE, LARGEST_RENDER)),
        "Side of the agent's square images, which must be that of the data's images. auto: taken from them.",
        "pixels",
    ),
)
REPLAY = drqv2.REPLAY | table(
    replay_buffer_size=key(
        Auto(Int(1)),
        "Capacity, at least the data's transitions. auto: these, and with then=drqv2 at least a million.",
        "transitions",
    ),
)
RECORDS = drqv2.RECORDS | table(
    log_every_frames=free(Int(1), "Interval between two rows of train.csv.", "frames"),
)


def check(cfg: Mapping[str, Any]) -> None:
    """Check what is learnt from stored data, and for how long."""
    drqv2.check(cfg)
    if cfg["data"] is None:
        raise UserError("data is missing: give the episodes to learn from, data=RUN_DIR, data=DIR or data=minari:NAME")
    if cfg.get("agent.update_every_steps", 1) != 1:
        raise UserError(
            f"agent.update_every_steps={cfg['agent.update_every_steps']}: must be 1 with regime=offline, which "
            "learns at every step"
        )
    if cfg["then"] is not None and not cfg["save_snapshot"]:
        raise UserError(f"then={cfg['then']} with save_snapshot=false: the second part resumes from a snapshot")
    offline, frames = cfg["offline_frames"], cfg["num_train_frames"]
    if cfg["then"] is None and offline is not None:
        raise UserError(f"offline_frames={offline} applies only to then=drqv2; set num_train_frames instead")
    collecting = {
        "num_envs": 1,
        "seed_updates": 0,
        "updates_per_step": 1,
        "steps_per_collect": None,
        "episodes_per_collect": None,
        "test_in_train": False,
    }
    for name, value in collecting.items():
        if cfg["then"] is None and cfg[name] != value:
            raise UserError(f"{name}={show(cfg[name])} applies only to then=drqv2; without it nothing is collected")
    if cfg["then"] is not None and (offline is None or offline >= frames):
        raise UserError(
            f"then={cfg['then']}: needs offline_frames below num_train_frames={frames}, got {show(offline)}"
        )


REGIME = Regime(
    name="offline",
    purpose="DrQ+BC, BC, CQL or DrQ-v2 from stored episodes",
    workspace="drqv2.regimes.offline:OfflineWorkspace",
    agents={
        "drqv2_bc": Agent("drqv2.agents.offline.DrQV2BCAgent", continuous=True),
        "drqv2": drqv2.DRQV2,
        "bc": Agent("drqv2.agents.offline.BCAgent", continuous=True),
        "cql": Agent("drqv2.agents.offline.CQLAgent", continuous=True),
        "spq": drqv2.SPQ,
    },
    keys={"Task": TASK, "Data": DATA} | drqv2.KEYS | {"Replay": REPLAY, "Records": RECORDS},
    check=check,
    collects=False,
)
