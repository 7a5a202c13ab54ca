"""Arms of successor_parts.yaml: SPQ without one of the parts that no key turns off."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from drqv2.agents.spq import Metrics, SPQAgent
from drqv2.errors import UserError
from drqv2.nn.latents import LatentEncoder

PARTS = ("centring", "differences", "transitions", "zero_start")


class Uncentred(LatentEncoder):
    """Latents z = ELU(LN(h)) of a linear h, whose mean stays in it."""

    def _latents(self, h: Tensor, mean: Tensor) -> Tensor:
        return super()._latents(h, 0 * mean)


class Without(SPQAgent):
    """SPQ without one of its parts.

    Args:
        obs_shape, action_shape, device: as kwargs, those of SPQAgent.
        precision, seed, num_envs, frame_stack: the same; a run passes them to agents that name them.
        part: what it lacks, one of PARTS: the centring of latents, the weights of the first layer for differences
            of frames (they are those of each frame), the later transitions of a segment, for actor and critic, or the
            zeros in the model's last layer at the start.
        kwargs: the others.

    Raises:
        UserError: there is no such part, or no images whose differences could be left out.
    """

    def __init__(
        self,
        obs_shape: Sequence[int],
        action_shape: Sequence[int],
        device: str,
        precision: str,
        seed: int,
        num_envs: int,
        frame_stack: int,
        *,
        part: str,
        **kwargs: Any,
    ) -> None:
        own: dict[str, Any] = {"precision": precision, "seed": seed, "num_envs": num_envs, "frame_stack": frame_stack}
        super().__init__(obs_shape, action_shape, device, **own, **kwargs)
        if part not in PARTS:
            raise UserError(f"agent.part={part} must be one of {', '.join(PARTS)}")
        if part == "differences" and len(obs_shape) != 3:
            raise UserError("agent.part=differences is for images alone; set obs_type=pixels")
        self.used = 1 if part == "transitions" else self.segment  # transitions of a segment
        encoder: Any
        for encoder in (self.encoder, self.encoder_target):
            if part == "centring":
                encoder.__class__ = Uncentred
            elif part == "differences":
                encoder.body[0].frames = 1
        if part == "zero_start":
            last: Any = self.model.net[-1]
            last.reset_parameters()

    def update_critic(self, latents: Tensor, action: Tensor, returns: Tensor, mask: Tensor) -> Metrics:
        """Fit both Q functions, to the first transitions alone if the part is the later ones."""
        last = self.used
        return super().update_critic(latents[:last], action[:, :last], returns[:, :last], mask[:, :last])

    def update_actor(self, latents: Tensor, mask: Tensor) -> Metrics:
        """Move policy and temperature, at the first latents alone if the part is the later transitions."""
        return super().update_actor(latents[: self.used], mask[:, : self.used])
