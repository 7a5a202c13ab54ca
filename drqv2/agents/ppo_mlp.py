"""PPO with its policy and its update in C++ (mlp.cpp, ppo_mlp.cpp), for small policies of vectors on a CPU.

For networks this small, torch spends more time between operations than in them.
"""

from __future__ import annotations

import copy
import ctypes
import functools
import math
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from drqv2.agents.ppo import PPOAgent
from drqv2.nn import extension, optimizers
from drqv2.nn.policies import Policy, State

SOURCES = Path(__file__).parents[1] / "nn" / "mlp.cpp", Path(__file__).with_suffix(".cpp")
# Beyond these, torch's operations on several cores are faster.
MOST_STEPS, MOST_UNITS = 2048, 256
_LANES = 16  # floats in a vector, of which hidden units must be a multiple
_REAL: dict[torch.dtype, Any] = {torch.float32: ctypes.c_float, torch.float64: ctypes.c_double}
_PARTS = 9  # weight and bias of four layers, and log_std
_STEPS = ("obs", "actions", "log_probs", "rewards", "dones", "live", "followed", "values", "ratio")
SETTINGS = (
    *("discount", "gae_lambda", "rho_clip", "c_clip", "clip_coef", "vf_coef", "vf_clip", "ent_coef"),
    *("max_grad_norm", "prio_alpha", "beta", "target_kl"),
)
COUNTS = ("minibatches", "in_pass", "drawn", "accumulate")
_Addresses = ctypes.c_void_p * _PARTS


def fast(agent: Any) -> Any:
    """Return a `MlpPPOAgent` in place of an agent if that learns the same, in a trial, only faster; else the agent.

    It does not learn the same if a loss or the policy was changed and the C++ code was not.
    """
    if type(agent) is not PPOAgent or not suits(agent):
        return agent
    trials = MlpPPOAgent.of(copy.deepcopy(agent)), copy.deepcopy(agent)
    if _agree(trials):
        return MlpPPOAgent.of(agent)
    warnings.warn("ppo_mlp.cpp differs from ppo.py or policies.py, so it is not used: slower", stacklevel=2)
    return agent


def suits(agent: PPOAgent) -> bool:
    """Return whether the C++ code knows an agent's policy, optimizer and advantages, and is faster than torch."""
    policy = agent.policy
    small = policy.hidden_dim <= MOST_UNITS and agent.minibatch_size <= MOST_STEPS and policy.hidden_dim % _LANES == 0
    plain = policy.obs_ndim == 1 and policy.lstm is None and policy.critic.weight.device.type == "cpu"
    known = [type(part) for part in policy.encoder.children()] == [nn.Linear, nn.Tanh] * 2
    adam = [type(optimizer) for optimizer in agent.optimizers] == [optimizers.Adam]
    supported = small and plain and known and adam and agent.advantage != "minibatch"
    return supported and extension.load("ppo_mlp", SOURCES, "-DREAL=float") is not None


class MlpPPOAgent(PPOAgent):
    """A `PPOAgent` that acts and learns in C++, if it `suits`; all else is the same, snapshots too."""

    @classmethod
    def of(cls, agent: PPOAgent) -> Self:
        """Return an agent that takes over what another consists of."""
        own = cls.__new__(cls)
        vars(own).update(vars(agent))
        return own

    @torch.inference_mode()
    def step(self, obs: Any, state: State | None, first: Tensor) -> tuple[Tensor, Tensor, Tensor, State | None]:
        """See `PPOAgent.step`."""
        actions, log_probs, values = act(self.policy, self.policy.normalized(obs), self.generator)
        return actions.reshape(len(obs), *self.policy.action_shape), log_probs, values, None

    def _optimise(self, steps: dict[str, Any], number: int, beta: float) -> tuple[list[float], int]:
        losses = self.clip_coef, self.vf_coef, self.vf_clip, self.ent_coef
        target_kl = math.inf if self.target_kl is None else self.target_kl
        advantages = self.discount, self.gae_lambda, self.rho_clip, self.c_clip
        numbers = *advantages, *losses, self.max_grad_norm, self.prio_alpha, beta, target_kl
        settings = dict(zip(SETTINGS, numbers, strict=True))
        if self.advantage == "once":
            shuffled, rows, _ = zip(*self._shuffled(steps, number), strict=True)
            steps, draws = shuffled[0], torch.stack(rows)
        else:
            shape = number, len(steps["rewards"])
            draws = steps["rewards"].new_empty(shape).exponential_(generator=self.generator)
        sizes = number, self._pass(steps["rewards"].numel()), self.minibatch_size // steps["rewards"].shape[1]
        settings |= dict(zip(COUNTS, (*sizes, self.accumulate_minibatches), strict=True))
        steps["obs"] = self.policy.normalized(steps["obs"])
        means, made = learn(self.policy, self.optimizers[0], steps, settings, draws)
        approx_kl = means[-1] - 1 + means[3]  # from the mean ratio and that of -log r
        return [*means, approx_kl], made


def _agree(agents: Iterable[Any]) -> bool:
    """Return whether agents, one of which uses this module, learn the same from two batches of made-up steps."""
    count, horizon = 4, 8
    noise = torch.Generator().manual_seed(0)
    rewards, sums = torch.randn(2, count, horizon, generator=noise)
    terminated, truncated, first = torch.zeros(3, count, horizon, dtype=torch.bool)
    terminated[0, 2] = truncated[1, 3] = first[0, 3] = first[1, 4] = True
    batch = {"rewards": rewards, "terminated": terminated, "truncated": truncated, "first": first, "state": None}
    batch["obs"] = torch.randn(count, horizon, next(iter(agents)).policy.encoder[0].in_features, generator=noise)
    found = []
    for agent in agents:
        agent.minibatch_size, agent.update_epochs = count * horizon // 2, 1.0
        results = agent.step(batch["obs"].flatten(0, 1), None, first.flatten())[:3]
        batch |= zip(
            ("actions", "log_probs", "values"), (x.unflatten(0, (count, horizon)) for x in results), strict=True
        )
        batch["log_probs"] = batch["log_probs"] + 0.3 * rewards  # as if the policy had changed
        metrics = [agent.update(iter([batch | {"sums": sums}]), agent.total_steps // 2) for _ in range(2)][1]
        moments = [agent.optimizers[0].state[parameter]["exp_avg"] for parameter in agent.policy.parameters()]
        found.append([*moments, *map(torch.tensor, metrics.values())])
    return all((a - b).norm() <= 1e-3 * b.norm() + 1e-6 for a, b in zip(*found, strict=True))


class _Policy(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("inputs", "hidden", "outputs", "groups")),
        ("sizes", ctypes.c_void_p),
        ("weights", _Addresses),
    )


class _Batch(ctypes.Structure):
    _fields_ = (("segments", ctypes.c_int64), ("horizon", ctypes.c_int64), ("steps", _Addresses))


def act(policy: Policy, obs: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Return sampled actions [N, number of actions], their log probabilities [N] and values [N].

    Args:
        policy: one that `suits`.
        obs: normalised, [N, inputs].
        generator: of the noise, used as by the distributions of `drqv2.nn.policies`.
    """
    net, rows = _described(policy), len(obs)
    noise = torch.empty(rows, net.outputs, dtype=obs.dtype)
    if policy.sizes is None:
        noise.normal_(generator=generator)
        actions = torch.empty_like(noise)
    else:
        noise.exponential_(generator=generator)
        actions = torch.empty(rows, net.groups, dtype=torch.int64)
    results = actions, torch.empty(rows, dtype=obs.dtype), torch.empty(rows, dtype=obs.dtype)
    inputs = _pointer(obs), _pointer(noise), ctypes.c_int64(rows)
    _library(obs.dtype).act(ctypes.byref(net), *inputs, *map(_pointer, results))
    return results


def learn(
    policy: Policy,
    adam: torch.optim.Optimizer,
    steps: Mapping[str, Tensor],
    settings: Mapping[str, float],
    draws: Tensor,
) -> tuple[list[float], int]:
    """Learn from a batch as `PPOAgent` does.

    Args:
        policy: one that `suits`.
        adam: its optimizer, an Adam.
        steps: obs (normalised), actions, log_probs, rewards, dones, live, followed, [S, H, ...]; and values and ratio,
            which are written unless segments are given.
        settings: those of SETTINGS and COUNTS.
        draws: exponential noise by which segments are drawn, [minibatches, S]; or the segments of each minibatch, int64
            [minibatches, drawn], with `advantages` in `steps`, which then are not computed again.

    Returns:
        The means of its minibatches' metrics, in the order of METRICS without approx_kl, and the steps of Adam.
    """
    dtype, given = steps["values"].dtype, draws.dtype == torch.int64
    settings_of, adam_of = _structures(dtype)
    count, horizon = steps["values"].shape
    parameters, *_ = _layout(policy)
    states, group = [_moments(adam, parameter) for parameter in parameters], adam.param_groups[0]
    moments = (_array(state[name] for state in states) for name in ("exp_avg", "exp_avg_sq"))
    structures = (
        _described(policy),
        _Batch(count, horizon, _array(steps[name] for name in _STEPS)),
        settings_of(*(settings[name] for name in (*SETTINGS, *COUNTS))),
        adam_of(*moments, group["lr"], *group["betas"], group["eps"], int(states[0]["step"])),
    )
    metrics = (ctypes.c_double * 6)()
    drawn = (None, _pointer(draws), _pointer(steps["advantages"])) if given else (_pointer(draws), None, None)
    made = _library(dtype).learn(*map(ctypes.byref, structures), *drawn, metrics)
    for parameter in parameters:
        adam.state[parameter]["step"] += made
    return list(metrics), int(made)


def _moments(adam: torch.optim.Optimizer, parameter: Tensor) -> dict[str, Tensor]:
    """Return Adam's state of a parameter, which torch makes at its first step."""
    state: dict[str, Tensor] = adam.state[parameter]
    if not state:
        state |= {"step": torch.zeros(()), "exp_avg": torch.zeros_like(parameter)}
        state["exp_avg_sq"] = torch.zeros_like(parameter)
    return state


@functools.lru_cache(maxsize=8)
def _layout(policy: Any) -> tuple[list[nn.Parameter], tuple[int, ...], Any]:
    """Return the parameters of a policy, its four sizes, and an array of its sizes of actions or None."""
    layers = policy.encoder[0], policy.encoder[2], policy.actor, policy.critic
    parameters = [parameter for layer in layers for parameter in (layer.weight, layer.bias)]
    sizes = policy.sizes or ()
    widths = layers[0].in_features, policy.hidden_dim, policy.actor.out_features, len(sizes)
    if not sizes:
        return [*parameters, policy.log_std], widths, None
    return parameters, widths, (ctypes.c_int64 * len(sizes))(*sizes)


def _described(policy: Policy) -> _Policy:
    parameters, widths, sizes = _layout(policy)
    return _Policy(*widths, sizes and ctypes.addressof(sizes), _array(parameters))


def _address(x: Tensor) -> int:
    assert x.is_contiguous()
    return x.data_ptr()


def _pointer(x: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(_address(x))


def _array(tensors: Iterable[Tensor]) -> Any:
    return _Addresses(*[_address(x) for x in tensors])


@functools.cache
def _structures(dtype: torch.dtype) -> tuple[Any, Any]:
    real = _REAL[dtype]

    class Settings(ctypes.Structure):
        _fields_ = (*((name, real) for name in SETTINGS), *((name, ctypes.c_int64) for name in COUNTS))

    class Adam(ctypes.Structure):
        _fields_ = (
            *((name, _Addresses) for name in ("mean", "square")),
            *((name, real) for name in ("lr", "beta1", "beta2", "eps")),
            ("steps", ctypes.c_int64),
        )

    return Settings, Adam


@functools.cache
def _library(dtype: torch.dtype) -> Any:
    library: Any = extension.load("ppo_mlp", SOURCES, f"-DREAL={_REAL[dtype].__name__.removeprefix('c_')}")
    library.learn.restype = ctypes.c_int64
    return library
