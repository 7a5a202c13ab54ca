"""Keys of learning from stored data; their defaults are in cfgs/regime/offline.yaml."""

from __future__ import annotations

from drqv2.config.kinds import Auto, Bool, Choice, Float, Int, Key, Text
from drqv2.config.tables import drqv2
from drqv2.config.tables.shared import LARGEST_RENDER, SMALLEST_IMAGE, fixed, free

DATA = (
    fixed(
        "data",
        Text(),
        "Episodes to learn from: a run's directory, one of episode files (this project's, .npz of the public DrQ-v2 or "
        "of V-D4RL, .hdf5 of V-D4RL or D4RL), one such file, or minari:NAME. They are not changed.",
        null="must be given",
    ),
    fixed(
        "clip_actions",
        Bool(),
        "Clip the data's actions to [-1, 1] instead of refusing others.",
        legacy=False,
    ),
    free("then", Choice("drqv2"), "What the run continues with after offline_frames.", null="nothing: it ends"),
    free(
        "offline_frames",
        Int(1),
        "Length of learning from stored data, in updates times action_repeat.",
        "frames",
        null="num_train_frames",
    ),
)
RECORDS = (*drqv2.RECORDS, free("log_every_frames", Int(1), "Interval between two rows of train.csv.", "frames"))
AGENT = (
    *drqv2.AGENT,
    *drqv2.SPQ,
    Key("agent.bc_alpha", Float(0), "Weight of the values relative to the imitation term. For agent=drqv2_bc."),
    Key("agent.cql_alpha", Float(0), "Weight of the conservative term. For agent=cql."),
    Key(
        "agent.cql_samples",
        Int(1),
        "Sampled actions per kind (uniform, policy at obs, policy at next_obs). For agent=cql.",
    ),
)

# Keys that mean something else where the data are given.
_OTHERWISE = {
    key.name: key
    for key in (
        fixed(
            "image_size",
            Auto(Int(SMALLEST_IMAGE, LARGEST_RENDER)),
            "Side of the agent's square images, which must be that of the data's images. auto: taken from them.",
            "pixels",
        ),
        Key(
            "replay_buffer_size",
            Auto(Int(1)),
            "Capacity, at least the data's transitions. auto: these, and with then=drqv2 at least a million.",
            "transitions",
        ),
    )
}
_OWN = {"Data": DATA}
GROUPS = {  # by title, in the order in which they are shown
    title: tuple(_OTHERWISE.get(key.name, key) for key in {"Records": RECORDS, "Agent": AGENT}.get(title, keys))
    for title, keys in {"Task": drqv2.GROUPS["Task"], **_OWN, **drqv2.GROUPS}.items()
}
