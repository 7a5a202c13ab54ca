"""Replay on disk: a storage that writes one file per episode, and a loader that samples batches in the background.

The storage is the only writer and alone decides what is sampled: a *window* is a range of consecutive episodes, and
every batch is drawn uniformly from the transitions of one. Batch k depends only on the seed, on k and on the window at
the time batch k - LOOKAHEAD was taken; neither the number of workers nor their timing changes it. The environment's
specs determine what is stored. The implementation is in drqv2/replay.
"""

from drqv2.replay.device import choose_replay_device
from drqv2.replay.gather import Batch, Request
from drqv2.replay.gather import BatchGatherer as ReplayBuffer
from drqv2.replay.loader import ReplayLoader, make_replay_loader
from drqv2.replay.sampler import LOOKAHEAD, ReplaySampler
from drqv2.replay.storage import ReplayBufferStorage, Window, episode_path

__all__ = [
    "LOOKAHEAD",
    "Batch",
    "ReplayBuffer",
    "ReplayBufferStorage",
    "ReplayLoader",
    "ReplaySampler",
    "Request",
    "Window",
    "choose_replay_device",
    "episode_path",
    "make_replay_loader",
]
