"""What a gymnasium.vector.VectorEnv returns: taken apart and checked; and how it is closed."""

from __future__ import annotations

import signal
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import wait
from typing import Any

import numpy as np
from gymnasium.vector import AsyncVectorEnv

from drqv2.envs.checks import FAULTS, explained, shown
from drqv2.envs.env_process import MEMORY
from drqv2.envs.images import NUMERIC
from drqv2.envs.info import is_kept, numbers
from drqv2.envs.notices import notice
from drqv2.errors import EnvError, UserError
from drqv2.parts import each


@contextmanager
def process_deaths_told(vector: Any, who: str = "") -> Iterator[None]:
    """Context of calls of a vector: a process of an AsyncVectorEnv that dies is named; `who` begins the message.

    Raises:
        EnvError: one has died.
    """
    try:
        yield
    except (EOFError, OSError) as error:
        processes = getattr(getattr(vector, "unwrapped", vector), "processes", [])
        gone = wait([process.sentinel for process in processes], 1.0)  # its pipe is closed a little earlier
        for i, process in enumerate(processes):
            if process.sentinel in gone:
                process.join()
                told = f"{who}the process of environment {i} ended with status {process.exitcode}"
                raise EnvError(f"{told}{MEMORY * (process.exitcode == -signal.SIGKILL)}") from error
        raise


def close_vector(vector: Any, name: str, failed: bool = False) -> None:
    """Close a vector; an error is only reported, since it does not affect the run's results.

    Args:
        vector: to be closed.
        name: of the vector, for messages.
        failed: whether its last reset or step raised an error.
    """
    inner = getattr(vector, "unwrapped", vector)
    try:
        with explained(f"{name}: close()"):
            if failed and isinstance(inner, AsyncVectorEnv):
                # One of its processes may have died or hang: Gymnasium would wait for its reply.
                for process in inner.processes:
                    process.kill()
                for pipe in inner.parent_pipes:
                    if pipe is not None:
                        pipe.close()
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # that a step is pending
                    inner.close(terminate=True)
            vector.close()
    except EnvError as error:
        notice(str(error))


def reset_parts(returned: Any, who: str = "") -> Any:
    """Return the observations of what reset() returned; `who` begins messages.

    Raises:
        EnvError: it is not (observations, infos).
    """
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise EnvError(f"{who}reset() returned {shown(returned)}: must return (observations, infos)")
    return returned[0]


def step_parts(returned: Any, num_envs: int, who: str = "") -> tuple[Any, Any, Any, Any, Mapping[Any, Any]]:
    """Return observations, rewards [N], terminated and truncated bool [N], new arrays, and infos of a step.

    Args:
        returned: by step().
        num_envs: N.
        who: begins messages.

    Raises:
        EnvError: it is something else.
    """
    must = f"must return (observations, rewards, terminated, truncated, infos), three arrays ({num_envs},) and a dict"
    if not isinstance(returned, tuple) or len(returned) != 5:
        raise EnvError(f"{who}step() returned {shown(returned)}: {must}")
    observation, *parts, infos = returned
    arrays = [as_array(part, f"{who}step() returned") for part in parts]
    if any(x.shape != (num_envs,) for x in arrays) or not isinstance(infos, Mapping):
        raise EnvError(f"{who}step() returned observations, {', '.join(map(shown, (*arrays, infos)))}: {must}")
    reward, *flags = arrays
    if any(x.dtype != bool and not np.isin(x, (0, 1)).all() for x in flags):
        raise EnvError(f"{who}step() returned terminated and truncated {np.unique(flags)[:4]}: must be flags")
    terminated, truncated = (np.array(x, bool) for x in flags)
    return observation, np.array(reward), terminated, truncated, infos


def as_array(value: Any, what: str) -> np.ndarray:
    """Return a value as an array of numbers; `what` begins the message of the EnvError that it cannot be."""
    try:
        array = np.asarray(value)
    except FAULTS as error:  # a tensor on a GPU or with a gradient, lists of different lengths
        raise EnvError(f"{what} {shown(value)}, which numpy cannot read: must be an array of numbers") from error
    if array.dtype.kind not in NUMERIC:
        raise EnvError(f"{what} {shown(value)}: must be an array of numbers")
    return array


def row(observation: Any, i: int) -> Any:
    """Return the observation of one environment.

    Raises:
        EnvError: there is none.
    """
    try:
        return {key: x[i] for key, x in observation.items()} if isinstance(observation, Mapping) else observation[i]
    except (TypeError, IndexError, KeyError):
        raise EnvError(f"the vector's observations are {shown(observation)}: must have a row each") from None


def final_observation(infos: Mapping[str, Any], i: int) -> Any:
    """Return the last observation of an episode that has ended in environment i, in the mode SAME_STEP.

    Raises:
        UserError: it is not there.
    """
    final = infos.get("final_obs")
    if final is None or (found := row(final, i)) is None:
        raise UserError(
            f"environment {i} of the vector ended an episode, and its info has no final_obs\n"
            "In the mode SAME_STEP the last observation of an episode must be there: the observation is the next one's"
        )
    return found


def final_observations(infos: Mapping[str, Any], rows: Sequence[int]) -> Any:
    """Return the last observations of episodes that have ended in some environments, [K, ...]; raises as for one."""
    return each(lambda *found: np.stack(found), *(final_observation(infos, i) for i in rows))


def put(rows: np.ndarray, array: np.ndarray, values: np.ndarray) -> None:
    """Put values into some rows of an array."""
    array[rows] = values


def info_of(infos: Mapping[Any, Any], i: int) -> dict[Any, Any]:
    """Return the info of environment i in a vector's."""
    arrays = {key: x for key, x in infos.items() if isinstance(x, np.ndarray) and x.ndim == 1 and len(x) > i}
    return {key: x[i] for key, x in arrays.items() if not _is_mask(key, infos) and _has(infos, key, x.shape)[i]}


def vector_numbers(infos: Mapping[Any, Any], known: np.ndarray) -> dict[str, np.ndarray]:
    """Return the numbers in a vector's info, float64 [N], NaN in rows that have none or are not `known`."""
    found = {}
    for key, x in infos.items():
        if not isinstance(x, np.ndarray) or x.shape != known.shape or _is_mask(key, infos) or not is_kept(key):
            continue
        if x.dtype == object:  # flags of numpy are kept so
            x = np.array([(numbers({key: value}) or {}).get(key, np.nan) for value in x])
        if x.dtype.kind in NUMERIC:
            values = x.astype(np.float64)
            values[~(known & _has(infos, key, known.shape) & np.isfinite(values))] = np.nan
            if not np.isnan(values).all():
                found[key] = values
    return found


def _is_mask(key: Any, infos: Mapping[Any, Any]) -> bool:
    """Return whether a key of a vector's info says which environments have another one."""
    return isinstance(key, str) and key[:1] == "_" and key[1:] in infos


def _has(infos: Mapping[Any, Any], key: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Return which environments have a value, bool [N]: all of them where no mask of this shape says otherwise."""
    mask = np.asarray(infos.get(f"_{key}"))
    return mask.astype(bool) if mask.shape == shape else np.ones(shape, bool)
