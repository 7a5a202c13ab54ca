"""What a data set holds: numbers of episodes and transitions, returns, shapes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from drqv2.config.formatting import counted
from drqv2.datasets.episodes import Episode

_BARS, _BINS = 40, 10


@dataclass
class Summary:
    """Numbers of a data set.

    Attributes:
        returns: of each episode.
        lengths: transitions of each.
        shapes: dtype and shape of a row of each array, by name.
        terminated: episodes that end in a terminal state.
        nbytes: of the arrays in memory.
    """

    returns: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    shapes: dict[str, str] = field(default_factory=dict)
    terminated: int = 0
    nbytes: int = 0

    def add(self, episode: Episode) -> None:
        """Count an episode."""
        self.returns.append(episode.total)
        self.lengths.append(episode.length)
        self.shapes |= {name: f"{array.dtype} {list(array.shape[1:])}" for name, array in episode.arrays.items()}
        self.terminated += bool(episode.arrays["discount"][-1] == 0)
        self.nbytes += sum(array.nbytes for array in episode.arrays.values())

    def line(self) -> str:
        """Return the most important of them in a line."""
        if not self.returns:
            return "no episode"
        returns = np.array(self.returns)
        return (
            f"{counted(len(returns), 'episode')}, {counted(sum(self.lengths), 'transition')}, "
            f"return {returns.mean():.1f} ({returns.min():.1f} to {returns.max():.1f}), "
            f"{self.nbytes / 1e6:,.1f} MB in memory"
        )

    def card(self) -> list[str]:
        """Return all of them as lines, with a histogram of the returns."""
        if not self.returns:
            return ["no episode"]
        lengths = np.array(self.lengths)
        lines = [self.line(), f"transitions of an episode: {lengths.min():,} to {lengths.max():,}"]
        lines.append(f"episodes that end in a terminal state: {self.terminated:,}")
        lines += [f"{name}: {shape}" for name, shape in sorted(self.shapes.items())]
        counts, edges = np.histogram(self.returns, bins=min(_BINS, len(set(self.returns))))
        lines.append("returns:")
        for count, low, high in zip(counts, edges[:-1], edges[1:], strict=True):
            bar = "█" * round(_BARS * count / counts.max())
            lines.append(f"{low:>10.1f} to {high:>8.1f} {count:>7,} {bar}")
        return lines


def summarize(episodes: Iterable[Episode]) -> Summary:
    """Return the numbers of all episodes."""
    summary = Summary()
    for episode in episodes:
        summary.add(episode)
    return summary
