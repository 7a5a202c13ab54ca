"""DrQ-v2 on several tasks at once: one encoder, an embedding of the task in the trunks and layers of actor and critic.

With one task, or without an embedding, it is DrQ-v2, bit for bit on a CPU; on a GPU it does not use CUDA graphs.

Options with published evidence, off by default:

- `critic="residual"`, `value="hl_gauss"`, `normalize_rewards=True`: a wide critic of residual blocks with layer
  normalisation that learns values as distributions by cross-entropy, with rewards scaled alike for all tasks, as
  in BRC (Nauman et al., "Bigger, Regularized, Categorical", arXiv 2505.23150).
- `critic_heads="task"`: an output layer of the critic for each task.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Annotated, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from drqv2 import utils
from drqv2.agents import fast_paths
from drqv2.agents.drqv2 import DrQV2Agent, Metrics
from drqv2.agents.protocol import ValueNetworks
from drqv2.config.keys import fixed
from drqv2.config.kinds import POSITIVE, Bool, Choice, Int
from drqv2.errors import UserError
from drqv2.nn import categorical
from drqv2.nn.deterministic import MeanActionOfTask, of_parts
from drqv2.nn.observations import to_device
from drqv2.nn.task_networks import TaskActor, TaskCritic, TaskEmbedding
from drqv2.parts import batched, rows
from drqv2.utils import extends

_TARGETS = {"two_hot": categorical.two_hot, "hl_gauss": categorical.hl_gauss}


class MultiTaskAgent(DrQV2Agent):
    """DrQ-v2 with the task as an input.

    Args:
        args: and kwargs, those of `DrQV2Agent`.
        num_tasks: how many tasks.
        action_sizes: numbers in an action of each task; actions are as long as the largest. None: all alike.
        others: keys of the configuration, described below.
        kwargs: see `args`.

    Raises:
        UserError: see `DrQV2Agent`; or there is no such `value`.
    """

    takes_task = True

    @extends(DrQV2Agent.__init__)
    def __init__(
        self,
        *args: Any,
        num_tasks: int = 1,
        action_sizes: Sequence[int] | None = None,
        task_dim: Annotated[int, fixed(Int(0), "Size of a task's embedding; 0: no embedding.", "numbers")] = 32,
        critic: Annotated[
            str,
            fixed(
                Choice("drqv2", "residual"),
                "The critic's layers: DrQ-v2's, or residual blocks with layer normalisation (BRC, arXiv 2505.23150).",
            ),
        ] = "drqv2",
        critic_dim: Annotated[int, fixed(Int(1), "Width of the residual blocks.", "units")] = 512,
        critic_blocks: Annotated[int, fixed(Int(1), "Residual blocks of each value.", "blocks")] = 2,
        value: Annotated[
            str,
            fixed(
                Choice("scalar", "two_hot", "hl_gauss"),
                "A value: a number; or a distribution over bins, learnt by cross-entropy from two neighbouring bins, "
                "or from a Gaussian's share of each (HL-Gauss, arXiv 2403.03950).",
            ),
        ] = "scalar",
        value_bins: Annotated[int, fixed(Int(3), "Number of bins of a distribution.", "bins")] = 101,
        value_max: Annotated[
            float,
            fixed(
                POSITIVE,
                "Largest value that the bins cover; the smallest is its negative. Values beyond are clipped, so use "
                "normalize_rewards with bins.",
            ),
        ] = 10.0,
        normalize_rewards: Annotated[
            bool,
            fixed(Bool(), "Divide a task's rewards by its greatest discounted return so far over value_max."),
        ] = False,
        critic_heads: Annotated[
            str,
            fixed(Choice("shared", "task"), "The critic's output layer: one for all tasks, or one for each."),
        ] = "shared",
        **kwargs: Any,
    ) -> None:
        self._task_dim = task_dim if num_tasks > 1 else 0
        self._num_tasks = num_tasks
        self._critic_options: dict[str, Any] = {
            "task_dim": self._task_dim,
            "residual": (critic_dim, critic_blocks) if critic == "residual" else None,
            "bins": 1 if value == "scalar" else value_bins,
            "heads": num_tasks if critic_heads == "task" else 1,
        }
        super().__init__(*args, **kwargs)
        self._set_values(value, value_bins, value_max, normalize_rewards)
        self._set_mask(action_sizes)

    def _set_values(self, value: str, bins: int, value_max: float, normalize_rewards: bool) -> None:
        if value not in ("scalar", *_TARGETS):
            raise UserError(f"agent.value={value} must be scalar, {' or '.join(_TARGETS)}")
        if value != "scalar" and not normalize_rewards:
            what = f"agent.value={value} without agent.normalize_rewards=true clips values at {value_max:g}"
            warnings.warn(what, stacklevel=3)
        self._target = _TARGETS.get(value)
        self._centers = categorical.centers(bins, value_max).to(self.device)
        self._value_max, self._normalize_rewards = value_max, normalize_rewards
        # The greatest |discounted return| of each task.
        self.return_max = torch.zeros(self._num_tasks, device=self.device)

    def _set_mask(self, action_sizes: Sequence[int] | None) -> None:
        """Keep 1 for the numbers of a task's own actions, 0 for those that only others have, [num_tasks, A]."""
        action_dim = self.actor.policy[-1].out_features
        sizes = torch.tensor(action_sizes or [action_dim] * self._num_tasks)
        mask = (torch.arange(action_dim) < sizes[:, None]).float().to(self.device)
        self._mask = None if bool(mask.all()) else mask

    def _networks(
        self, sizes: tuple[int, Sequence[int], int, int, float], critic_layer_norm: bool
    ) -> tuple[Any, Any, Any]:
        make_critic = partial(TaskCritic, *sizes, critic_layer_norm, **self._critic_options)
        networks = TaskActor(*sizes, self._task_dim), make_critic(), make_critic()
        self.embedding = TaskEmbedding(self._num_tasks, self._task_dim).to(self.device)
        return networks

    def _make_optimizers(self, lr: float) -> None:
        super()._make_optimizers(lr)
        if self._task_dim:  # it learns from the critic's loss, as the encoder does
            self.encoder_opt.add_param_group({"params": list(self.embedding.parameters())})

    def act(self, obs: Any, step: int, eval_mode: bool, task: int = 0) -> np.ndarray:
        """Choose an action, see `DrQV2Agent.act`; `task` is the task's index."""
        action: np.ndarray = self.act_batch(batched(obs), step, eval_mode, [task])[0]
        return action

    @torch.no_grad()
    def act_batch(self, obs: Any, step: int, eval_mode: bool, task: Sequence[int] | None = None) -> np.ndarray:
        """Choose an action for each of a batch of observations, [B, ...], of tasks [B]. Returns float32 [B, A]."""
        tasks = torch.as_tensor(task if task is not None else [0] * rows(obs), device=self.device)
        features = self.encoder(to_device(obs, self.device))
        dist = self._policy(features, self.embedding(tasks), tasks, step)
        if eval_mode:
            action = dist.mean
        elif step < self.num_expl_steps:
            action = self._own(torch.empty_like(dist.mean).uniform_(-1.0, 1.0, generator=self.act_generator), tasks)
        else:
            action = self._own(dist.sample(clip=None, generator=self.act_generator), tasks)
        return action.cpu().numpy()

    def deterministic_policy(self) -> torch.nn.Module:
        """Return a module from observations and tasks to the mean actions, see `DrQV2Agent.deterministic_policy`."""
        policy = MeanActionOfTask(self.encoder, self.actor, self.embedding, self._mask)
        return of_parts(policy, self.obs_parts)

    def update(self, replay_iter: Iterator[Any], step: int) -> Metrics:
        """Learn from one batch, see `DrQV2Agent.update`; its sixth field is the task's index, int64 [B]."""
        if step % self.update_every_steps != 0:
            return {}
        obs, action, reward, discount, next_obs, task = utils.to_torch(next(replay_iter), self.device)
        obs = self._shifted(obs)
        with torch.no_grad():
            next_obs = self._shifted(next_obs)
        with self._autocast():
            features, embedded = self._encode(obs), self.embedding(task)
        with torch.no_grad(), self._autocast():
            next_features = self._encode(next_obs)

        metrics: Metrics = {"batch_reward": reward.mean()} if self.use_tb else {}
        if self._normalize_rewards:
            reward = reward / self.reward_scale(task)
        metrics |= self.update_task_critic(features, action, reward, discount, next_features, embedded, task, step)
        seen = None if embedded is None else embedded.detach()
        metrics |= self.update_task_actor(features.detach(), seen, task, step)
        utils.soft_update_params(self.critic, self.critic_target, self.critic_target_tau)
        return metrics

    def update_task_critic(
        self,
        obs: Tensor,
        action: Tensor,
        reward: Tensor,
        discount: Tensor,
        next_obs: Tensor,
        embedded: Tensor | None,
        task: Tensor,
        step: int,
    ) -> Metrics:
        """Fit both values, the encoder and the embedding to the n-step target; see `DrQV2Agent.update_critic`."""
        with torch.no_grad(), self._autocast():
            dist = self._policy(next_obs, embedded, task, step)
            next_action = dist.sample(clip=self.stddev_clip, generator=self.update_generator)
            next_qs = self.critic_target(next_obs, self._own(next_action, task), embedded, task)
            target_q = reward + discount * torch.min(*map(self._mean, next_qs))  # [B, 1]

        with self._autocast():
            outputs = self.critic(obs, action, embedded, task)
        critic_loss = self._loss(outputs[0], target_q) + self._loss(outputs[1], target_q)

        self.encoder_opt.zero_grad(set_to_none=True)
        self.critic_opt.zero_grad(set_to_none=True)
        critic_loss.backward()
        self.critic_opt.step()
        self.encoder_opt.step()

        if not self.use_tb:
            return {}
        q1, q2 = (self._mean(output.detach()).mean() for output in outputs)
        values = {"critic_target_q": target_q.mean(), "critic_q1": q1, "critic_q2": q2}
        return values | {"critic_loss": critic_loss.detach()}

    def update_task_actor(self, obs: Tensor, embedded: Tensor | None, task: Tensor, step: int) -> Metrics:
        """Move the policy towards actions of higher value; see `DrQV2Agent.update_actor`."""
        with self._autocast():
            dist = self._policy(obs, embedded, task, step)
            action = self._own(dist.sample(clip=self.stddev_clip, generator=self.update_generator), task)
            q1, q2 = map(self._mean, self.critic(obs, action, embedded, task))
        actor_loss = -torch.min(q1, q2).mean()

        self.actor_opt.zero_grad(set_to_none=True)
        actor_loss.backward(inputs=list(self.actor.parameters()))
        self.actor_opt.step()

        if not self.use_tb:
            return {}
        return {
            "actor_loss": actor_loss.detach(),
            "actor_logprob": self._own(dist.log_prob(action), task).sum(-1, keepdim=True).detach().mean(),
            "actor_ent": self._own(dist.entropy(), task).sum(-1).detach().mean(),
        }

    def observe_episode(self, task: int, rewards: np.ndarray, discounts: np.ndarray) -> None:
        """Record the largest discounted return of an episode, if rewards are normalised.

        Args:
            task: its task's index.
            rewards: float32 [T].
            discounts: of each step, gamma in them, float32 [T].
        """
        if not self._normalize_rewards:
            return
        ret = greatest = 0.0
        for reward, discount in zip(rewards[::-1].tolist(), discounts[::-1].tolist(), strict=True):
            ret = reward + discount * ret
            greatest = max(greatest, abs(ret))
        self.return_max[task] = max(greatest, float(self.return_max[task]))

    def reward_scale(self, task: Tensor) -> Tensor:
        """Return what rewards of tasks, int64 [B], are divided by, [B, 1]; 1 before a task's first reward."""
        greatest = self.return_max[task, None]
        return torch.where(greatest > 0, greatest / self._value_max, 1.0)

    def networks_of(self, task: int) -> ValueNetworks:
        """Return encoder, actor and critic of one task, to be called as those of `DrQV2Agent`."""
        tasks = torch.tensor([task], device=self.device)

        def actor(features: Tensor, std: float) -> utils.TruncatedNormal:
            return self.actor(features, std, self._embedded(tasks, features), self._masks(tasks))

        def critic(features: Tensor, action: Tensor) -> tuple[Tensor, ...]:
            outputs = self.critic(features, action, self._embedded(tasks, features), tasks.expand(len(features)))
            scale = self.reward_scale(tasks) if self._normalize_rewards else 1.0
            return tuple(self._mean(output) * scale for output in outputs)

        return ValueNetworks(self.encoder, actor, critic, (self.actor, self.critic))

    def _embedded(self, task: Tensor, features: Tensor) -> Tensor | None:
        embedded = self.embedding(task)
        return None if embedded is None else embedded.expand(len(features), -1)

    def _policy(self, features: Tensor, embedded: Tensor | None, task: Tensor, step: int) -> utils.TruncatedNormal:
        dist: utils.TruncatedNormal = self.actor(features, self._stddev(step), embedded, self._masks(task))
        return dist

    def _masks(self, task: Tensor) -> Tensor | None:
        return None if self._mask is None else self._mask[task]

    def _own(self, x: Tensor, task: Tensor) -> Tensor:
        """Return x, [B, A], with 0 where the action of a task has no number."""
        mask = self._masks(task)
        return x if mask is None else x * mask

    def _mean(self, output: Tensor) -> Tensor:
        return output if self._target is None else categorical.expected(output, self._centers)

    def _loss(self, output: Tensor, target: Tensor) -> Tensor:
        if self._target is None:
            return F.mse_loss(output, target)
        return categorical.cross_entropy(output, self._target(target, self._centers))

    @property
    def _as_published(self) -> bool:
        """Whether no module was replaced or hooked, and nothing overridden; see `DrQV2Agent`."""
        return type(self) is MultiTaskAgent and fast_paths.are_published(self, [TaskActor, TaskCritic, TaskCritic])

    @property
    def _graphs(self) -> bool:
        return False  # tasks are not part of the graphs
