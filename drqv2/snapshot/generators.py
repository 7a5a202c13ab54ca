"""The states of generators of random numbers: torch's, numpy's and Python's; an agent's own, and the global ones."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

RANDOM = np.random.Generator | np.random.RandomState | random.Random


def random_state(generator: Any) -> Any:
    """Return the state of a generator of numpy's or Python's."""
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return generator.get_state(legacy=False)


def set_random_state(generator: Any, state: Any) -> Any:
    """Return the generator with that state: a new one, if `generator` is not of its kind."""
    if isinstance(state, tuple):
        generator = generator if isinstance(generator, random.Random) else random.Random()
        generator.setstate(state)
    elif "has_gauss" in state:
        generator = generator if isinstance(generator, np.random.RandomState) else np.random.RandomState()
        generator.set_state(state)
    else:
        kind = getattr(np.random, state["bit_generator"])
        if not isinstance(generator, np.random.Generator) or type(generator.bit_generator) is not kind:
            generator = np.random.Generator(kind())
        generator.bit_generator.state = state
    return generator


def rng_state() -> dict[str, Any]:
    """Return the state of the global generators of torch (CPU and CUDA), numpy and Python."""
    legacy: Any = np.random.get_state()
    algorithm, keys, *rest = legacy
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "numpy": [algorithm, torch.from_numpy(keys.copy()), *rest],
        "python": random.getstate(),
    }


def set_rng_state(state: dict[str, Any]) -> None:
    """Restore what `rng_state` returned; CUDA generators only on as many devices."""
    torch.set_rng_state(state["torch"])
    if torch.cuda.is_available() and len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["cuda"])
    algorithm, keys, *rest = state["numpy"]
    np.random.set_state((algorithm, keys.numpy(), *rest))
    random.setstate(state["python"])
