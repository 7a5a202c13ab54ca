"""Options for reading stored data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal


@dataclass(frozen=True)
class ReadOptions:
    """How data are to be read.

    Attributes:
        obs_type: of observations that are dicts: "state" joins the parts that are no images; "pixels" takes the image,
            or all of several; "pixels+state" keeps images and vectors as parts. "auto": all parts of files; of Minari's
            what an environment with them shows, see `drqv2.envs.make`.
        clip_actions: clip finite actions to [-1, 1], instead of refusing them.
        observation_parts: names of the only parts that are read; None for all.
        image_key: which part is the image; None: see `drqv2.envs.make`.
        channels: which axis of images holds the channels, where environments stored them (Minari's, D4RL's).
    """

    obs_type: Literal["auto", "pixels", "state", "pixels+state"] = "auto"
    clip_actions: bool = False
    observation_parts: Sequence[str] | None = None
    image_key: str | None = None
    channels: Literal["auto", "first", "last"] = "auto"

    @classmethod
    def of(cls, cfg: Mapping[str, Any]) -> ReadOptions:
        """Return those of a configuration, which may lack some."""
        return cls(**{field.name: cfg[field.name] for field in fields(cls) if field.name in cfg})


DEFAULTS = ReadOptions()
