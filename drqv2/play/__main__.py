"""Play an exported policy in its world, which is rebuilt from the file alone: returns, and a film of an episode.

python -m drqv2.play policy.onnx                              # one episode, filmed in policy.mp4
python -m drqv2.play policy.onnx --episodes 10 --seed 3       # the first of ten is filmed
python -m drqv2.play policy.onnx --out film.mp4 --render_size 480
python -m drqv2.play policy.onnx --out none                   # returns alone

It needs the extras `export` and `gym`, and, for a policy of EnvPool's, `envpool`.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from drqv2.config.formatting import counted
from drqv2.config.keys import Key
from drqv2.config.kinds import EvenInt, Int, Text
from drqv2.errors import UserError, not_installed
from drqv2.evaluation import screen
from drqv2.launch.arguments import run_tool
from drqv2.logging import overlay
from drqv2.play.policy import Played, Policy

KEYS: dict[Key, Any] = {
    Key("episodes", Int(1, 100_000), "Number of episodes.", "episodes"): 1,
    Key("seed", Int(0, 2**31 - 1), "Seed of the first episode; the next ones follow from it."): 1,
    Key("out", Text(), "Film of the first episode, FILE.mp4; or none.", null="the policy's name, here"): None,
    Key("render_size", EvenInt(16, 2048), "Height and width of the film.", "pixels"): 256,
}

_NEEDED = {"onnxruntime": "export", "gymnasium": "gym"}  # packages, and the extras that they are in


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line described in the module's docstring."""
    run_tool(run, __doc__, KEYS, sys.argv[1:] if argv is None else argv)


def run(sources: Sequence[str], values: dict[str, Any]) -> None:
    """Play the episodes, print their returns, and film the first.

    Args:
        sources: one file of a policy.
        values: of all KEYS.

    Raises:
        UserError: there is no such policy, its world cannot be rebuilt, or packages are missing.
    """
    if len(sources) != 1:
        raise UserError("give one policy: python -m drqv2.play policy.onnx [key=value ...]")
    path = Path(sources[0])
    film = Path(values["out"] or f"{path.stem}.mp4")
    if values["out"] != "none" and film.suffix != ".mp4":
        raise UserError(f"out={film}: must end in .mp4, or be none")
    extras = {package: extra for package, extra in _NEEDED.items() if find_spec(package) is None}
    if extras:
        raise UserError(not_installed(" and ".join(extras), ",".join(extras.values())))
    policy = Policy(path)
    try:
        env = policy.world.make(render_mode="rgb_array", render_size=values["render_size"])
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    try:
        ends = []
        for episode in range(values["episodes"]):
            steps = policy.play(env, values["seed"] if episode == 0 else None)
            if episode == 0 and values["out"] != "none":
                seen: list[Played] = []
                screen.write(_pictures(env, steps, seen), env.metadata["render_fps"], film)
                ends.append(seen[-1])
            else:
                ends.append(deque(steps, maxlen=1)[0])
            print(f"episode {episode}: return {ends[-1].total:.1f}, {counted(ends[-1].steps, 'step')}", flush=True)
    finally:
        env.close()
    print(_summary([end.total for end in ends], policy))


def _pictures(env: Any, steps: Iterator[Played], seen: list[Played]) -> Iterator[np.ndarray]:
    """Yield a picture of each step of an episode; keep the last step in `seen`."""
    for played in steps:
        seen[:] = [played]
        yield overlay.label(env.render(), 0, played.total, played.steps, played.action)


def _summary(totals: Sequence[float], policy: Policy) -> str:
    """Return the mean return, beside that of the evaluation in the file."""
    task, measured = policy.world.training["task"], policy.world.returns
    return (
        f"{task}: mean {np.mean(totals):.1f} of {counted(len(totals), 'episode')}; "
        f"when exported, {measured['mean']:.1f} of {measured['episodes']}"
    )


if __name__ == "__main__":
    main()
