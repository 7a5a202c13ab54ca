"""What can be set on eval.py's command line. Imports no torch, so that help and mistakes need not wait for it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from drqv2.config.keys import Key
from drqv2.config.kinds import Bool, Camera, Device, EvenInt, Float, Folder, Int, Several, Text
from drqv2.errors import UserError

CAMERAS = Several(Camera(), "a list of different cameras ([0,wrist])")
KEYS = {
    Key("episodes", Int(1, 100_000), "Number of episodes, of each task.", "episodes"): 10,
    Key("snapshot", Text(), "File in the run's directory, or a path.", null="the newest snapshot"): None,
    Key("task", Text(), "Another task with the same shapes; or one of several tasks.", null="all of the run's"): None,
    Key("seed", Int(0, 2**32 - 1), "Seed of the episodes.", null="the run's seed"): None,
    Key(
        "film",
        Text(),
        "Episodes to record side by side: indices (0,3,5), best, worst or none. Of several tasks, those of each.",
        null="0,1,2,3, or 0 of several tasks",
    ): None,
    Key("render_size", EvenInt(16, 2048), "Height and width of each episode's frames.", "pixels"): 256,
    Key("camera", Camera(), "Camera of the video; the agent sees what it saw in training.", null="the run's"): None,
    Key("cameras", CAMERAS, "Several of them instead, side by side.", null="one camera"): None,
    Key("fps", Float(0.1, 1000), "Frames per second of the video.", null="real time"): None,
    Key("live", Bool(), "Show the recorded episodes in a window instead of writing a video."): False,
    Key("num_envs", Int(1, 256), "Number of parallel environments, of each task.", "environments"): 1,
    Key("max_episode_steps", Int(1), "Truncate episodes after this many.", "agent steps", null="as in the run"): None,
    Key("device", Device(), "The agent's device."): "auto",
    Key("agent_dir", Folder(), "Directory of the agent's file.", null="as in training"): None,
    Key("trust", Bool(), "Run code named by a file of weights from outside the run's directory."): False,
    Key("export", Text(), "File for other programs: NAME.onnx, or NAME.pt2 of torch.export.", null="none"): None,
    Key("store", Text(), "New directory for the episodes, as a data set.", null="none"): None,
    Key("noise", Float(0), "Of store: standard deviation of Gaussian noise on each action."): 0.0,
    Key("random_share", Float(0, 1), "Of store: probability of a uniform action, at each step."): 0.0,
    Key("out", Text(), "Directory for the video and the returns.", null="eval/ in the run's directory"): None,
}


def source_of(words: Sequence[str]) -> Path:
    """Return the run directory or file of weights that a command line names.

    Raises:
        UserError: it names none or several, or there is no such file.
    """
    if len(words) != 1:
        raise UserError("give one run directory or one file of weights: python eval.py RUN_DIR [key=value ...]")
    if words[0].endswith(".onnx"):
        raise UserError(f"{words[0]}: an exported policy; python -m drqv2.play {words[0]} plays it")
    if not Path(words[0]).exists():
        raise UserError(f"{words[0]}: no such run directory or file")
    return Path(words[0])
