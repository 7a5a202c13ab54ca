"""Helpers for observations that are one array or a dict of parts: arrays, tensors, specs and shapes alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")


def each(function: Callable[..., Any], obs: Any, *others: Any) -> Any:
    """Apply a function to an observation, or to each part of a dict; `others` have the same parts. Returns the like."""
    if isinstance(obs, Mapping):
        return {name: function(part, *(other[name] for other in others)) for name, part in obs.items()}
    return function(obs, *others)


def parts(obs: Mapping[str, T] | T) -> list[T]:
    """Return the parts of an observation: a list of one, if it is not a dict."""
    return list(obs.values()) if isinstance(obs, Mapping) else [obs]


def names(obs: Any) -> tuple[str, ...]:
    """Return the names of the parts of an observation; none if it is not a dict."""
    return tuple(obs) if isinstance(obs, Mapping) else ()


def rows(obs: Any) -> int:
    """Return the size of a batch."""
    return len(parts(obs)[0])


def batched(obs: Any) -> Any:
    """Return a batch of one observation."""
    return each(lambda part: part[None], obs)
