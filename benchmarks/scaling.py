"""How far regime=impala scales with actors on several machines: `python -m benchmarks.scaling [--markdown] [--json]`.

Speeds of the learner and of one actor that are not given are measured on this machine, in half a minute; sizes are
computed. The plan is that of benchmarks/queueing.py, in closed form and simulated.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from benchmarks.common import Row, machine_facts, show_machine, show_rows, text
from benchmarks.impala import Learner, make_agent, random_batch
from benchmarks.queueing import Constants, closed_form, limits, simulate, slowest
from drqv2.agents.impala import ImpalaAgent
from drqv2.envs.pool import PoolVector
from drqv2.nn.policies import Policy
from drqv2.rollout.unroll import Unroller, acts_with, rollout_layout
from drqv2.system import machine, torch_settings

ABOUT = (
    "agent steps a second, lag in updates, shares of waiting, MB/s over the learner's link; in closed form, then "
    "simulated (sim)"
)


def main() -> None:
    """Print the plan for each number of actors."""
    args = arguments()
    facts = machine_facts()
    known = constants(args)
    rows = [row(known, actors, args.times) for actors in args.actors]
    if args.json:
        print(json.dumps({"machine": facts, "constants": asdict(known), "scaling": rows}, indent=2))
    elif args.markdown:
        show_markdown(known, rows)
    else:
        show_machine(facts)
        print("\n" + "\n".join(f"{name:<18}{value}" for name, value in asdict(known).items() if value is not None))
        print(saturation(known))
        show_rows("scaling", ABOUT, rows)


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--actors", type=lambda text: [int(n) for n in text.split(",")], default=[1, 10, 100, 1000], metavar="N,N")
    add("--env", default="Pong-v5", help="of EnvPool")
    add("--encoder", default="nature", help="mlp, small or nature")
    add("--hidden", type=int, default=256, help="units")
    add("--envs", type=int, default=1, help="environments of an actor")
    add("--unroll-length", type=int, default=80, help="steps of a rollout")
    add("--batch-size", type=int, default=32, help="rollouts of a batch, each of one environment")
    add("--actors-per-node", type=int, default=16)
    add("--num-buffers", type=int, help="rollouts of an actor under way; 2 for each actor, and two batches")
    add("--network-gbit", type=float, default=10.0, help="a second, of the learner's link in each direction")
    add("--learner-sps", type=float, help="agent steps that the learner learns from in a second")
    add("--actor-sps", type=float, help="steps of an actor in a second, those of all of its environments")
    add("--rollout-bytes", type=int, help="of an actor's rollout")
    add("--weight-bytes", type=int, help="of the policy")
    add("--times", default="exponential", choices=("exponential", "normal"), help="that rollouts take")
    add("--markdown", action="store_true", help="print the table of docs/deployment.md")
    add("--json", action="store_true", help="print JSON")
    add("--quick", action="store_true", help="smoke test: measure a moment")
    args = parser.parse_args()
    if args.batch_size % args.envs:
        parser.error(f"--batch-size {args.batch_size}: must be a multiple of --envs {args.envs}")
    least = max(args.actors) + args.batch_size // args.envs
    if args.num_buffers is not None and args.num_buffers < least:
        parser.error(f"--num-buffers {args.num_buffers}: must be at least {least}, one for each actor and a batch")
    return args


def constants(args: argparse.Namespace) -> Constants:
    """Return what limits a run: as given, else measured or computed."""
    seconds = 0.0 if args.quick else 10.0
    vector = PoolVector(args.env, args.envs, 0, num_threads=1)
    try:
        shape, actions = tuple(vector.observation_spec().shape), vector.action_spec().num_values
        sizes = Learner("", shape, args.encoder, args.hidden, False, actions, args.batch_size, args.unroll_length)
        torch_settings.keep_freed_memory()  # as train.py does
        agent = make_agent(sizes, machine.resolve_precision("auto", "cpu"))
        layout = rollout_layout(vector, None, args.unroll_length)
        arrays = {name: np.zeros(shape, dtype) for name, (shape, dtype) in layout.items()}
        learner_sps = args.learner_sps or learn(agent, sizes, seconds)
        actor_sps = args.actor_sps or act(vector, agent.policy, arrays, seconds)
    finally:
        vector.close()
    weights = sum(x.numel() * x.element_size() for x in agent.policy.state_dict().values())
    return Constants(
        learner_sps=learner_sps,
        actor_sps=actor_sps,
        network_gbit=args.network_gbit,
        rollout_steps=args.envs * args.unroll_length,
        rollout_bytes=args.rollout_bytes or sum(x.nbytes for x in arrays.values()),
        weight_bytes=args.weight_bytes or weights,
        batch=args.batch_size // args.envs,
        actors_per_node=args.actors_per_node,
        buffers=args.num_buffers,
    )


def learn(agent: ImpalaAgent, sizes: Learner, seconds: float) -> float:
    """Return the steps a second of the learner, from a batch in memory."""
    batch = random_batch(sizes)
    return rate(lambda: agent.update(iter([batch]), 0), sizes.rollouts * sizes.unroll_length, seconds)


def act(vector: PoolVector, policy: Policy, arrays: Mapping[str, np.ndarray], seconds: float) -> float:
    """Return the steps a second of an actor that fills these arrays of a rollout, with one thread."""
    envs, observations = arrays["rewards"].shape
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    unroller = Unroller(vector, acts_with(policy, torch.Generator().manual_seed(0)), None)
    unroller.start(vector.reset())
    found = rate(lambda: unroller.fill(arrays), envs * (observations - 1), seconds)
    torch.set_num_threads(threads)
    return found


def rate(call: Callable[[], Any], steps: int, seconds: float) -> float:
    """Return the steps a second of a call that takes this many, after two warm-up calls."""
    call()
    call()
    begin, count = time.perf_counter(), 0
    while count == 0 or time.perf_counter() - begin < seconds:
        call()
        count += 1
    return count * steps / (time.perf_counter() - begin)


def row(known: Constants, actors: int, times: str) -> Row:
    """Return the plan for a number of actors."""
    plan, simulated = closed_form(known, actors), simulate(known, actors, times)
    return {
        "actors": actors,
        "limit": slowest(limits(known, actors)),
        "SPS": plan.sps,
        "sim": simulated.sps,
        "lag": plan.lag,
        "sim lag": simulated.lag,
        "learner waits": plan.learner_waits,
        "sim learner waits": simulated.learner_waits,
        "actors wait": plan.actors_wait,
        "sim actors wait": simulated.actors_wait,
        "MB/s in": plan.mb_in,
        "sim MB/s in": simulated.mb_in,
        "MB/s out": plan.mb_out,
        "sim MB/s out": simulated.mb_out,
    }


def saturation(known: Constants, most: int = 10_000) -> str:
    """Return in words how many actors saturate each part."""
    words = []
    for part in ("learner", "rollouts in", "weights out"):
        enough = (n for n in range(1, most + 1) if limits(known, n)[part] <= n * known.actor_sps)
        n = next(enough, None)
        words.append(f"{part} by {n or f'more than {most}'}")
    return f"Saturated: {', '.join(words)} actors."


def show_markdown(known: Constants, rows: Sequence[Row]) -> None:
    """Print constants and rows as docs/deployment.md has them: the plan, and in brackets what was simulated."""
    print(
        f"Constants: {', '.join(f'{name}={value:,.6g}' for name, value in asdict(known).items() if value is not None)}."
    )
    print(saturation(known) + "\n")
    shown = ("SPS", "lag", "learner waits", "actors wait", "MB/s in", "MB/s out")
    simulated = {name: f"sim {name}" for name in shown} | {"SPS": "sim"}
    print(f"| actors | limit | {' | '.join(shown)} |\n|{'---|' * (len(shown) + 2)}")
    for row in rows:
        cells = (f"{text(row[name])} ({text(row[simulated[name]])})" for name in shown)
        print(f"| {row['actors']:,} | {row['limit']} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
