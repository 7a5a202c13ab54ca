"""Seeds of a run's random streams. Without torch: processes of environments import this."""

from __future__ import annotations

import numpy as np

# Random streams. Each consumer draws from its own child of the run's seed, so that more draws by one (another agent,
# another evaluation interval) never change the draws of another.
TRAIN_ENV, EVAL_ENV, REPLAY, AGENT, ACTOR = range(5)


def spawn_seed(seed: int, *key: int) -> int:
    """Return the uint32 seed of a child of `seed`, independent of all others (numpy's SeedSequence).

    Args:
        seed: the run's seed.
        key: non-negative integers that identify the child, the stream first, e.g. (TRAIN_ENV, environment, episode).
    """
    return int(np.random.SeedSequence(entropy=seed, spawn_key=key).generate_state(1)[0])
