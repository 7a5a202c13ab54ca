"""Which episodes regime=offline can learn from: one rule, for its runs and for `python -m drqv2.datasets check`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from drqv2.config.regimes.shared import SMALLEST_IMAGE
from drqv2.datasets.columns import Announce
from drqv2.datasets.episodes import Episode, is_observed
from drqv2.datasets.formats import read
from drqv2.datasets.options import DEFAULTS, ReadOptions
from drqv2.datasets.origin import origin
from drqv2.errors import UserError

Shapes = Mapping[str, tuple[int, ...]]
_SHOWN = 3  # problems in a message


@dataclass
class Findings:
    """What is wrong with a data set, a line for each problem, with file and row.

    Attributes:
        damage: cannot be read, or holds impossible numbers: `convert` with skip_bad=true leaves it out.
        unfit: not something that regime=offline learns from.
        misfits: has other shapes than the run, or than the first episode.
    """

    damage: list[str] = field(default_factory=list)
    unfit: list[str] = field(default_factory=list)
    misfits: list[str] = field(default_factory=list)

    @property
    def lines(self) -> list[str]:
        """All problems."""
        return [*self.damage, *self.unfit, *self.misfits]

    def raise_if_any(self, data: str) -> None:
        """Raise UserError with the first problems, and how to solve them."""
        for lines, advice in (
            (self.damage, f"python -m drqv2.datasets convert {data} NEW skip_bad=true makes a data set without them."),
            (self.unfit, f"python -m drqv2.datasets check {data} lists all of it."),
            (
                self.misfits,
                "Set obs_type, observation_parts, image_size, frame_stack or the task as the data has them.",
            ),
        ):
            if lines:
                more = f"\nand {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else ""
                raise UserError("\n".join(lines[:_SHOWN]) + f"{more}\n{advice}")


def learnable(
    data: str,
    findings: Findings,
    shapes: Shapes | None = None,
    options: ReadOptions = DEFAULTS,
    announce: Announce = print,
) -> Iterator[Episode]:
    """Yield the episodes of a data set from which a run can learn.

    Args:
        data: what `formats.read` takes.
        findings: takes what is wrong with the others.
        shapes: those of a row of each episode, by the names of its arrays; by default those of the first episode.
        options: see `formats.read`.
        announce: see `formats.read`.

    Raises:
        UserError: there is no data set there, it is empty, or one of several tasks.
    """
    origin(data)  # the file with the origin may be damaged
    of, wanted = ("the first episode", {}) if shapes is None else ("the run", dict(shapes))
    number = 0
    for episode in read(data, findings.damage.append, options, announce):
        number += 1
        _require_one_task(data, episode)
        unfit = list(_unfit(episode))
        misfits = [] if unfit else list(_misfits(episode, wanted, of))
        findings.unfit += unfit
        findings.misfits += misfits
        if unfit or misfits:
            continue
        wanted = wanted or {name: array.shape[1:] for name, array in _learnt(episode).items()}
        yield episode
    if not number and not findings.damage:
        raise UserError(f"data={data}: holds no episode")


def first_learnable(data: str, options: ReadOptions = DEFAULTS) -> Episode:
    """Return the first episode of a data set from which a run can learn.

    Raises:
        UserError: there is none.
    """
    findings = Findings()
    for episode in learnable(data, findings, options=options, announce=lambda line: None):
        return episode
    findings.raise_if_any(data)
    raise UserError(f"data={data}: holds no episode")


def _learnt(episode: Episode) -> dict[str, np.ndarray]:
    """Return the observations and actions of an episode."""
    return {name: array for name, array in episode.arrays.items() if is_observed(name) or name == "action"}


def _require_one_task(data: str, episode: Episode) -> None:
    if "task" in episode.arrays:
        raise UserError(
            f"data={data}: comes from a multi-task run; regime=offline learns one task\n"
            f"python -m drqv2.datasets filter {data} NEW task=N makes a data set of the task N, from 0."
        )


def _unfit(episode: Episode) -> Iterator[str]:
    """Yield why no run can learn from an episode."""
    learnt = _learnt(episode)
    if np.issubdtype(learnt["action"].dtype, np.integer):
        yield f"{episode.where}: its actions are discrete, and regime=offline needs actions in [-1, 1]"
        return
    names = sorted(learnt.keys() - {"action"})
    if len(names) > 1 and not all("." in name for name in names):
        yield f"{episode.where}: its observations are {', '.join(names)}: several must be named, such as frame.pixels"
        return
    for name, array in learnt.items():
        image = name.partition(".")[0] == "frame"
        if image and min(array.shape[2:]) < SMALLEST_IMAGE:
            least = f"images need sides of at least {SMALLEST_IMAGE} pixels"
            yield f"{episode.where}: {name} {_sizes(array.shape[1:])}: {least}"
        if not image and (array.dtype != np.float32 or array.ndim != 2):
            yield f"{episode.where}: {name} is {array.dtype} {list(array.shape)}: must be float32 [rows, numbers]"


def _misfits(episode: Episode, wanted: Shapes, of: str) -> Iterator[str]:
    """Yield what differs in an episode from the shapes `wanted`, which are those of `of`."""
    for name, shape in wanted.items():
        array = episode.arrays.get(name)
        if array is None:
            found = ", ".join(sorted(episode.arrays))
            yield f"{episode.where}: has no {name}, which {of} has; it has {found}"
        elif array.shape[1:] != shape:
            yield f"{episode.where}: {name} {_sizes(array.shape[1:])}: that of {of} is {_sizes(shape)}"
    if wanted:
        for name in sorted(_learnt(episode).keys() - wanted.keys()):
            yield f"{episode.where}: has {name}, which {of} has not; observation_parts=[...] can leave it out"


def _sizes(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
