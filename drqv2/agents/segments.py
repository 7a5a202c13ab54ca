"""A batch of segments, as on-policy agents learn from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from drqv2.nn.policies import State
from drqv2.parts import each


class Segments(NamedTuple):
    """Consecutive steps of environments, as collected: [S, H, ...], S segments of H steps each.

    Reward and the three flags came with the observation. Where an episode ended, the observation is its last, the
    action was ignored, and the next step is `first`.

    Attributes:
        obs: float32 [S, H, N] or uint8 [S, H, C, H, W]; or a dict of these.
        actions: chosen at it, float32 [S, H, A] or int64 [S, H, A].
        log_probs: of the actions when they were chosen, [S, H].
        values: of the observations then, [S, H].
        rewards: [S, H].
        terminated: bool [S, H].
        truncated: bool [S, H].
        first: bool [S, H].
        state: of the LSTM before each segment, two [S, hidden]; None without one.
    """

    obs: Any
    actions: Tensor
    log_probs: Tensor
    values: Tensor
    rewards: Tensor
    terminated: Tensor
    truncated: Tensor
    first: Tensor
    state: State | None

    def live(self) -> Tensor:
        """Return 1 where an action counted and its result is in the segment, else 0, [S, H]."""
        live = (~(self.terminated | self.truncated)).to(self.rewards.dtype)
        return F.pad(live[:, :-1], (0, 1))

    def followed(self, bootstrap: bool) -> Tensor:
        """Return 0 where nothing is bootstrapped, since an episode has ended, else 1, [S, H].

        Args:
            bootstrap: whether from the last observation of a truncated episode.
        """
        ended = self.terminated if bootstrap else self.terminated | self.truncated
        return (~ended).to(self.values.dtype)


def take_rows(x: Any, rows: Tensor) -> Any:
    """Return the rows of a tensor, or of each tensor in a tuple or a dict."""
    return tuple(part[rows] for part in x) if isinstance(x, tuple) else each(lambda part: part[rows], x)


def shuffled(rows: int, size: int, number: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield so many minibatches of `size` out of `rows` numbers, int64 [size]: each once before any comes again."""
    left = torch.empty(0, dtype=torch.int64, device=generator.device)
    for _ in range(number):
        while len(left) < size:
            left = torch.cat([left, torch.randperm(rows, generator=generator, device=left.device)])
        yield left[:size]
        left = left[size:]
