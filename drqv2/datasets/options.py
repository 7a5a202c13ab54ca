"""Options for reading stored data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class ReadOptions:
    """How data are to be read.

    Attributes:
        obs_type: of a Dict of observations (Minari's): "state" joins the parts that are no images; otherwise the image
            is taken, if there is one.
        clip_actions: clip finite actions to [-1, 1], instead of refusing them.
        image_key: which part of a Dict of observations (Minari's) is the image; None: `pixels`, or the only image.
        channels: which axis of images holds the channels, where environments stored them (Minari's, D4RL's).
    """

    obs_type: Literal["auto", "pixels", "state"] = "auto"
    clip_actions: bool = False
    image_key: str | None = None
    channels: Literal["auto", "first", "last"] = "auto"

    @classmethod
    def of(cls, cfg: Mapping[str, Any]) -> ReadOptions:
        """Return those of a configuration, which may lack some."""
        return cls(**{name: cfg[name] for name in ("obs_type", "clip_actions", "image_key", "channels") if name in cfg})


DEFAULTS = ReadOptions()
