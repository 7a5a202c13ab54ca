"""What a snapshot keeps of an agent and of the global generators, as tensors, numbers, strings and containers of them.

An agent with `state_dict` and `load_state_dict` of its own is asked for it. Any other is saved by walking its
attributes, so that an agent file written without a thought of resuming resumes all the same.
"""

from drqv2.snapshot.state.capturing import capture, networks, parameters, weights
from drqv2.snapshot.state.generators import rng_state, set_rng_state
from drqv2.snapshot.state.restoring import restore

__all__ = ["capture", "networks", "parameters", "restore", "rng_state", "set_rng_state", "weights"]
