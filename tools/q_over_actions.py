"""How much a critic's values vary over actions and over states: what DrQ+BC has to improve its policy by.

python tools/q_over_actions.py RUN... --weights weights_40000.pt

A RUN is one of `regime=offline`. For 256 states of its data, prints the mean of |Q|, and as shares of it: the mean over
states of the standard deviation of Q over 32 uniformly random actions; the same over actions that the data has in such
states; the standard deviation over states of Q at the data's actions; and by how much the policy's actions are valued
above the data's. Q is the lesser of the two, |Q| that of the data's actions. DrQ+BC weights Q by 2.5 over the mean of
|Q| of the policy's.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import OmegaConf
from torch import Tensor

from drqv2.agents.drqv2 import DrQV2Agent
from drqv2.datasets.formats import read
from drqv2.datasets.learnable import first_learnable
from drqv2.datasets.options import ReadOptions
from drqv2.regimes.offline import DataSpecs
from drqv2.run import factory
from drqv2.snapshot import agent_weights

STATES, ACTIONS = 256, 32


def main() -> None:
    """Run the command line described above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--weights", default="weights_40000.pt")
    args = parser.parse_args()
    print("| run | mean of abs(Q) | over random actions | over the data's actions | over states | policy - data |")
    print("|---|---|---|---|---|---|")
    for run in args.runs:
        if not (run / args.weights).is_file():
            raise SystemExit(f"{run / args.weights}: there is no such file; --weights names one of the run's")
        cfg: Any = OmegaConf.load(run / "config.yaml")
        cfg.device, cfg.compile = "cpu", False
        options = ReadOptions.of(cfg)
        specs: Any = DataSpecs(first_learnable(cfg.data, options).arrays, cfg.frame_stack)
        with redirect_stdout(sys.stderr):
            agent = factory.make_agent(cfg, specs, torch.device("cpu"))
            agent_weights.init_weights(agent, run / args.weights)
        if not isinstance(agent, DrQV2Agent) or agent.networks_of(0) is None:
            raise SystemExit(f"{run}: {type(agent).__name__} learns no values")
        figures = measure(agent, *states(cfg.data, cfg.frame_stack, options))
        shares = " | ".join(f"{value / figures[0]:.4f}" for value in figures[1:])
        print(f"| {run.name} | {figures[0]:.2f} | {shares} |", flush=True)


def states(data: str, frame_stack: int, options: ReadOptions) -> tuple[Tensor, Tensor]:
    """Return stacked images of states of the data, uint8 [N, C, H, W], and the actions taken there, [N, A]."""
    episodes = [episode.arrays for episode in read(data, sys.exit, options)]
    rng, obs, actions = np.random.default_rng(0), [], []
    for _ in range(STATES):
        arrays = episodes[rng.integers(len(episodes))]
        t = rng.integers(len(arrays["action"]) - 1)
        rows = np.maximum(np.arange(t + 1 - frame_stack, t + 1), 0)  # the first image again before the first
        obs.append(np.concatenate(arrays["frame"][rows]))
        actions.append(arrays["action"][t + 1])
    return torch.from_numpy(np.stack(obs)), torch.from_numpy(np.stack(actions))


@torch.no_grad()
def measure(agent: DrQV2Agent, obs: Tensor, actions: Tensor) -> tuple[float, float, float, float, float]:
    """Return the mean of |Q|, and the figures that are printed as shares of it."""
    torch.manual_seed(0)
    features = torch.cat([agent.encoder(chunk) for chunk in obs.split(64)])

    def q(action: Tensor) -> Tensor:
        return torch.min(*agent.critic(features, action)).squeeze(1)  # [N]

    def spread(samples: list[Tensor]) -> float:
        return float(torch.stack([q(action) for action in samples]).std(0).mean())

    own = q(actions)
    uniform = [torch.rand_like(actions) * 2 - 1 for _ in range(ACTIONS)]
    others = [actions[torch.randperm(STATES)] for _ in range(ACTIONS)]
    gained = q(agent.actor(features, 0.1).mean) - own
    return float(own.abs().mean()), spread(uniform), spread(others), float(own.std()), float(gained.mean())


if __name__ == "__main__":
    main()
