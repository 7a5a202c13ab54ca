"""Evaluation of agents that act from a policy, possibly a recurrent one."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from drqv2.agents.acting import evaluation_policy
from drqv2.envs import ExtendedTimeStep
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
    policy = evaluation_policy(workspace.agent, shape, workspace.global_step)

    @torch.no_grad()
    def act(time_step: ExtendedTimeStep, episode: int) -> np.ndarray:
        return policy(time_step, episode)

    return evaluate(workspace, workspace.eval_envs, workspace.video_recorder, act)
