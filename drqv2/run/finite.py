"""A run ends where it computes NaN or infinity."""

from __future__ import annotations

from drqv2.errors import NotFiniteError
from drqv2.run.protocol import Run
from drqv2.snapshot import agent_state
from drqv2.snapshot.agent_weights import not_finite


def require_finite(run: Run, parameters: bool = False) -> None:
    """Check that no loss, and with `parameters` no parameter, is NaN or infinite.

    Raises:
        NotFiniteError: one is; it is named.
    """
    name = run.logger.nonfinite_loss()
    if name is None and parameters:
        name = not_finite(agent_state.capture(run.agent), "agent")
    if name:
        raise NotFiniteError(f"{name} is not finite at frame {run.global_frame} (episode {run.global_episode})")
