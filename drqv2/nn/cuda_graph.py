"""An agent's update, and its policy, as a CUDA graph each: hundreds of kernels, one launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

GraphedUpdate = Callable[[Sequence[Tensor], float], dict[str, Tensor]]
GraphedPolicy = Callable[[Tensor], Tensor]

_WARM_UP = 3  # calls on a side stream before the capture, as torch.cuda.graph asks for


def graphed_update(agent: Any, batch: Sequence[Tensor], step: int) -> GraphedUpdate:
    """Record `agent._learn` and return a function that replays it.

    The update reads its batch and the noise's standard deviation from fixed places, which the function fills in. All
    parameters, optimizer states and generators are as before when this returns. Generators are registered with the
    graph, so that their states go on from replay to replay and are in a snapshot as always.

    Args:
        agent: DrQV2Agent on a CUDA device.
        batch: of the shapes to come.
        step: agent steps so far.

    Returns:
        A function of (batch, standard deviation) that does one update and returns its metrics. A function, so that a
        snapshot leaves it out: it holds no state of its own.
    """
    place = [x.clone() for x in batch]
    agent.graph_stddev = stddev = torch.zeros((), device=place[0].device)
    draws_shifts = getattr(agent.aug, "generator", None)  # there is none for states
    generators = [g for g in (agent.update_generator, draws_shifts) if g is not None]
    modules = (agent.encoder, agent.actor, agent.critic, agent.critic_target)
    optimizers = (agent.encoder_opt, agent.actor_opt, agent.critic_opt)
    before = [{k: v.clone() for k, v in m.state_dict().items()} for m in modules]
    states = [[{k: v.clone() for k, v in o.state[p].items()} for p in o.param_groups[0]["params"]] for o in optimizers]
    draws = [g.get_state() for g in generators]
    device = place[0].device
    global_draw = torch.cuda.get_rng_state(device)  # the warm-up of what has no generator of its own draws from there

    graph, metrics = _record(lambda: agent._learn(place, step), generators)
    agent.graph_stddev = None

    with torch.no_grad():
        for module, values in zip(modules, before, strict=True):
            module.load_state_dict(values)
        for optimizer, saved in zip(optimizers, states, strict=True):
            for param, values in zip(optimizer.param_groups[0]["params"], saved, strict=True):
                for name, value in optimizer.state[param].items():
                    value.copy_(values[name] if values else torch.zeros_like(value))
    for generator, state in zip(generators, draws, strict=True):
        generator.set_state(state)
    torch.cuda.set_rng_state(global_draw, device)

    def replay(batch: Sequence[Tensor], std: float) -> dict[str, Tensor]:
        for old, new in zip(place, batch, strict=True):
            old.copy_(new, non_blocking=True)
        stddev.fill_(std)
        graph.replay()
        return {name: value.clone() for name, value in metrics.items()}  # the next replay overwrites them

    return replay


def graphed_policy(agent: Any) -> GraphedPolicy:
    """Return a function that replays the way from observations to mean actions, a graph for each number of them.

    Parameters are read where they are, so that updates and restored snapshots show at once.

    Args:
        agent: DrQV2Agent on a CUDA device.

    Returns:
        A function of observations, uint8 [N, C, H, W] on any device, that returns the means [N, A], which its next call
        overwrites.
    """
    graphs: dict[int, tuple[Tensor, Tensor, torch.cuda.CUDAGraph]] = {}

    def means(obs: Tensor) -> Tensor:
        if len(obs) not in graphs:
            place = obs.to(agent.device, copy=True)
            graph, mean = _record(lambda: agent.actor(agent.encoder(place), 1.0).mean, [])
            graphs[len(obs)] = place, mean, graph
        place, mean, graph = graphs[len(obs)]
        place.copy_(obs, non_blocking=True)
        graph.replay()
        return mean

    return means


def _record(run: Callable[[], Any], generators: Sequence[torch.Generator]) -> tuple[torch.cuda.CUDAGraph, Any]:
    """Return a graph of what `run` does on the device, and what it returns, which each replay overwrites."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(_WARM_UP):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    for generator in generators:
        graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        result = run()
    return graph, result
