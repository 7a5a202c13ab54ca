"""What utils.py of the public DrQ-v2 has, under the same names: files written for it import this module instead.

Step predicates, a timer, seeding, schedules, the truncated normal, and how agents are made and put into a mode.
"""

from __future__ import annotations

import inspect
import math
import random
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Normal

from drqv2.errors import UserError
from drqv2.seeds import ACTOR as ACTOR
from drqv2.seeds import AGENT as AGENT
from drqv2.seeds import EVAL_ENV as EVAL_ENV
from drqv2.seeds import REPLAY as REPLAY
from drqv2.seeds import TRAIN_ENV as TRAIN_ENV
from drqv2.seeds import spawn_seed as spawn_seed


def set_seed_everywhere(seed: int) -> None:
    """Seed the global random generators of torch (all devices), numpy and Python."""
    torch.manual_seed(seed)  # seeds CUDA too
    np.random.seed(seed)
    random.seed(int(seed))


class eval_mode:
    """Put `models` (anything with `training` and `train(mode)`) into evaluation mode within the context."""

    def __init__(self, *models: Any) -> None:
        self.models = models

    def __enter__(self) -> None:
        self.previous = [model.training for model in self.models]
        for model, training in zip(self.models, self.previous, strict=True):
            if training:  # to walk through all of an agent's modules can take longer than its action
                model.train(False)

    def __exit__(self, *_: object) -> None:
        for model, training in zip(self.models, self.previous, strict=True):
            if training:
                model.train(training)


def agent_generators(
    seed: int | None, device: torch.device | str
) -> tuple[torch.Generator | None, torch.Generator | None, torch.Generator | None]:
    """Return an agent's generators of acting, updates and augmentation; None, torch's global one, without a seed."""
    if seed is None:
        return None, None, None
    acting, updates, augmentation = (torch.Generator(device).manual_seed(spawn_seed(seed, AGENT, i)) for i in range(3))
    return acting, updates, augmentation


def soft_update_params(net: nn.Module, target_net: nn.Module, tau: float) -> None:
    """Update the target's parameters in place: target = (1 - tau) * target + tau * net."""
    params: list[Tensor] = list(net.parameters())
    targets: list[Tensor] = list(target_net.parameters())
    with torch.no_grad():
        torch._foreach_lerp_(targets, params, tau)


def to_torch(xs: Iterable[Any], device: torch.device | str) -> tuple[Any, ...]:
    """Return the arrays or tensors `xs`, or dicts of them, as tensors on `device`, dtypes unchanged.

    Copies from pinned memory are asynchronous; later work on the same CUDA stream waits for them.
    """

    def convert(x: Any) -> Any:
        if isinstance(x, dict):
            return {key: convert(value) for key, value in x.items()}
        return torch.as_tensor(x).to(device, non_blocking=True)

    return tuple(map(convert, xs))


def weight_init(m: nn.Module) -> None:
    """Initialise a layer as DrQ-v2 does: orthogonal weights (ReLU gain for convolutions), zero biases.

    Use it with `Module.apply`.
    """
    if isinstance(m, nn.Linear):
        nn.init.orthogonal_(m.weight)
    elif isinstance(m, nn.Conv2d | nn.ConvTranspose2d):
        nn.init.orthogonal_(m.weight, nn.init.calculate_gain("relu"))
    else:
        return
    if m.bias is not None:
        nn.init.zeros_(m.bias)


class Until:
    """True until a number of environment frames has passed.

    Args:
        until: environment frames; None never ends.
        action_repeat: environment frames per agent step. Calls pass agent steps.
    """

    def __init__(self, until: int | None, action_repeat: int = 1) -> None:
        self.until = None if until is None else int(until) // action_repeat

    def __call__(self, step: int) -> bool:
        """Return whether agent step `step` is before the end."""
        return self.until is None or step < self.until


class Every:
    """True once per interval of environment frames: at each multiple, or at the first call after a skipped one.

    With several environments the counter advances by more than one and may skip multiples. The very first call is
    true on a multiple only.

    Args:
        every: environment frames, at least those of one agent step; None never fires.
        action_repeat: environment frames per agent step. Calls pass agent steps.

    Attributes:
        last_step: agent step of the last call, the only state.
    """

    def __init__(self, every: int | None, action_repeat: int = 1) -> None:
        self.every = None if every is None else int(every) // action_repeat
        self.last_step: int | None = None

    def __call__(self, step: int) -> bool:
        """Return whether agent step `step` is due, and record it."""
        due = self.due(step)
        self.last_step = step
        return due

    def due(self, step: int) -> bool:
        """Return whether agent step `step` is due."""
        if self.every is None:
            return False
        last = self.last_step
        return step % self.every == 0 or (last is not None and step // self.every > last // self.every)


Function = TypeVar("Function", bound=Callable[..., Any])


def extends(parent: Callable[..., Any]) -> Callable[[Function], Function]:
    """Return a decorator for a function that passes *args and **kwargs on to `parent`: its signature names them.

    An agent is offered the arguments that its signature names. The function's own parameters are keywords alone.
    """

    def decorate(function: Function) -> Function:
        theirs = inspect.signature(parent).parameters.values()
        own = [p for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY]
        function.__signature__ = inspect.Signature([*theirs, *own])  # type: ignore[attr-defined]
        return function

    return decorate


class Timer:
    """Measures seconds of training, since the last `reset()` and in total, without the time inside `paused()`.

    Args:
        total: seconds of training by earlier processes of the same run.
    """

    def __init__(self, total: float = 0.0) -> None:
        self._lap_start = time.perf_counter()
        self._start = self._lap_start - total
        self._paused_at: float | None = None

    def reset(self) -> tuple[float, float]:
        """Start a new lap; return the seconds of the last lap and in total."""
        now = time.perf_counter()
        lap, self._lap_start = now - self._lap_start, now
        return lap, now - self._start

    def total_time(self) -> float:
        """Return the total seconds."""
        return (self._paused_at or time.perf_counter()) - self._start

    def pause(self) -> None:
        """Do not count the time until `resume`."""
        self._paused_at = self._paused_at or time.perf_counter()

    def resume(self) -> None:
        """Count the time again."""
        if self._paused_at is not None:
            pause, self._paused_at = time.perf_counter() - self._paused_at, None
            self._start += pause
            self._lap_start += pause

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Do not count the time inside this context, which must not be nested."""
        began = time.perf_counter()
        try:
            yield
        finally:
            pause = time.perf_counter() - began
            self._start += pause
            self._lap_start += pause


class TruncatedNormal(Normal):
    """Normal distribution whose samples are clamped to (low, high), with a straight-through gradient.

    The policy's distribution (DrQ-v2, arXiv 2107.09645, section 3.1).

    Args:
        loc: mean, float [...].
        scale: standard deviation, float [...] or broadcastable.
        low: lower bound.
        high: upper bound.
        eps: margin between samples and bounds.
    """

    def __init__(
        self, loc: Tensor, scale: Tensor | float, low: float = -1.0, high: float = 1.0, eps: float = 1e-6
    ) -> None:
        super().__init__(loc, scale, validate_args=False)
        self.low, self.high, self.eps = low, high, eps

    def _clamp(self, x: Tensor) -> Tensor:
        clamped = torch.clamp(x, self.low + self.eps, self.high - self.eps)
        return x - x.detach() + clamped.detach()

    def sample(  # type: ignore[override]
        self,
        clip: float | None = None,
        sample_shape: Any = torch.Size(),  # noqa: B008
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Draw a sample; gradients flow to `loc` and `scale`.

        Args:
            clip: if given, the noise (not the sample) is clamped to [-clip, clip].
            sample_shape: leading dimensions of the sample.
            generator: source of the noise; torch's global generator if None.

        Returns:
            float [*sample_shape, ...] inside (low, high).
        """
        shape = self._extended_shape(sample_shape)
        noise = torch.randn(shape, dtype=self.loc.dtype, device=self.loc.device, generator=generator) * self.scale
        if clip is not None:
            noise = torch.clamp(noise, -clip, clip)
        return self._clamp(self.loc + noise)


_NUMBERS = {"linear": 3, "step_linear": 5}  # how many a schedule has


def schedule(schdl: str | float, step: int) -> float:
    """Return the value of a schedule at an agent step.

    Args:
        schdl: a number, `linear(init,final,duration)` or `step_linear(init,final1,duration1,final2,duration2)`;
            durations in agent steps.
        step: agent steps so far.

    Raises:
        UserError: `schdl` is malformed, or a duration is not positive.
    """
    with suppress(ValueError):
        return float(schdl)
    name, _, numbers = str(schdl).strip().partition("(")
    try:
        init, *legs = map(float, numbers.removesuffix(")").split(","))
    except ValueError:
        legs = []
    if 1 + len(legs) != _NUMBERS.get(name) or not numbers.endswith(")") or not all(map(math.isfinite, legs)):
        raise UserError(
            f"schedule {schdl!r}: expected a number, linear(init,final,duration) or "
            "step_linear(init,final1,duration1,final2,duration2), durations in agent steps"
        )
    if min(legs[1::2]) <= 0:
        raise UserError(f"schedule {schdl!r}: a duration must be above 0 agent steps, got {min(legs[1::2]):g}")
    at = float(step)
    for final, duration in zip(legs[::2], legs[1::2], strict=True):
        if at <= duration:
            mix = max(at / duration, 0.0)
            return (1.0 - mix) * init + mix * final
        init, at = final, at - duration
    return init
