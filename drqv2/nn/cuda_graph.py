"""CUDA graphs of an agent's update and policy: hundreds of kernels, one launch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from drqv2.nn.observations import Observation
from drqv2.parts import each, parts, rows

GraphedUpdate = Callable[..., dict[str, Tensor]]  # of (batch, stddev)
GraphedPolicy = Callable[[Observation], Tensor]

_WARM_UP = 3  # calls on a side stream before the capture, as torch.cuda.graph requires


def graphed_update(
    agent: object,
    learn: Callable[[Sequence[Any], Tensor], dict[str, Tensor]],
    batch: Sequence[Observation],
    generators: Iterable[torch.Generator | None],
) -> GraphedUpdate:
    """Capture an agent's update and return a function that replays it.

    The graph reads the batch and the exploration noise's standard deviation from static buffers, which the function
    fills. Capturing leaves parameters, buffers, optimizer
    states and generators unchanged, where modules and optimizers are the agent's own attributes. Generators are
    registered with the graph, so that their states advance with each replay and are saved in snapshots as usual.
    Optimizers must not load a state afterwards, since that replaces tensors which the graph reads.

    Args:
        agent: on a CUDA device, with capturable optimizers.
        learn: what is captured: an update with a batch and that standard deviation, [], which returns metrics.
        batch: an example with the shapes of all later ones; observations may be dicts.
        generators: those that the update draws from; None is torch's global one.

    Returns:
        A function of (batch, stddev) that performs one update and returns its metrics. It is a plain function, so that
        snapshots skip it.
    """
    static = [each(torch.clone, x) for x in batch]
    device = parts(static[0])[0].device
    stddev = torch.zeros((), device=device)
    own = [generator for generator in generators if generator is not None]
    before = {key: tensor.clone() for key, tensor in _changing(agent).items()}
    draws = [generator.get_state() for generator in own]
    with torch.random.fork_rng([device]):  # modules without a generator draw from the global one
        graph, metrics = _record(lambda: learn(static, stddev), own, device)
    for key, tensor in _changing(agent).items():
        tensor.copy_(before[key] if key in before else torch.zeros_like(tensor))  # optimizers begin with zeros
    for generator, state in zip(own, draws, strict=True):
        generator.set_state(state)

    def replay(batch: Sequence[Observation], std: float = 0.0) -> dict[str, Tensor]:
        for buffers, new in zip(static, batch, strict=True):
            each(_fill, buffers, new)
        stddev.fill_(std)
        graph.replay()
        return {name: value.clone() for name, value in metrics.items()}  # the next replay overwrites them

    return replay


def _fill(buffer: Tensor, new: Tensor) -> None:
    buffer.copy_(new, non_blocking=True)


def _changing(agent: object) -> dict[tuple[Any, str], Tensor]:
    """Return the tensors that updates change, in place."""
    modules = [value for value in vars(agent).values() if isinstance(value, nn.Module)]
    optimizers = [value for value in vars(agent).values() if isinstance(value, torch.optim.Optimizer)]
    weights = {(module, name): tensor for module in modules for name, tensor in module.state_dict().items()}
    moments = {(p, name): x for opt in optimizers for p, state in opt.state.items() for name, x in state.items()}
    return weights | moments


def graphed_policy(agent: Any, policy: GraphedPolicy | None = None) -> GraphedPolicy:
    """Return a function that maps observations to mean actions by replaying a graph, one for each batch size.

    The graph reads the live parameters, so updates and restored snapshots take effect immediately.

    Args:
        agent: on a CUDA device, with `encoder` and `actor`.
        policy: what the graph holds in place of the mean actions.

    Returns:
        A function of observations, [N, ...] on any device, or dicts of them, that returns the means [N, A], or
        what `policy` does. The next call overwrites them.
    """
    graphs: dict[int, tuple[Observation, Tensor, torch.cuda.CUDAGraph]] = {}
    policy = policy or (lambda obs: agent.actor(agent.encoder(obs), 1.0).mean)

    def means(obs: Observation) -> Tensor:
        size = rows(obs)
        if size not in graphs:
            static = each(lambda x: x.to(agent.device, copy=True), obs)
            graph, mean = _record(lambda: policy(static), [], agent.device)
            graphs[size] = static, mean, graph
        static, mean, graph = graphs[size]
        each(_fill, static, obs)
        graph.replay()
        return mean

    return means


def _record(
    run: Callable[[], Any], generators: Sequence[torch.Generator], device: torch.device | str
) -> tuple[torch.cuda.CUDAGraph, Any]:
    """Capture `run` in a graph; return the graph and the result of `run`, which each replay overwrites."""
    with torch.cuda.device(device):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_WARM_UP):
                run()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        for generator in generators:
            graph.register_generator_state(generator)
        with torch.cuda.graph(graph, stream=side):  # torch's own stream is that of the GPU of the process's first graph
            result = run()
    return graph, result
