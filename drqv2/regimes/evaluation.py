"""Evaluation of agents that act from a policy, possibly a recurrent one."""

from __future__ import annotations

from typing import Any

import torch

from drqv2.agents.acting import batch_policy
from drqv2.evaluation.episodes import evaluate
from drqv2.run.stats import EvalStats


def evaluate_policy(workspace: Any) -> EvalStats:
    """Play num_eval_episodes without exploration; log their returns and film the first.

    Args:
        workspace: with eval_envs and a video_recorder.

    Returns:
        Statistics of the evaluation.

    Raises:
        NotFiniteError: a loss or a parameter is NaN or infinite.
    """
    workspace.require_finite(parameters=True)
    shape = workspace.eval_envs[0].action_spec().shape
    act = batch_policy(workspace.agent, shape, workspace.global_step)
    together = hasattr(workspace.agent, "act_from")  # these agents act on batches
    with torch.no_grad():
        return evaluate(workspace, workspace.eval_envs, workspace.video_recorder, act, together)
