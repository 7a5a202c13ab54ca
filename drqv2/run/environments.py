"""Build a run's environments from its configuration: tasks, your own, and those of other libraries."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

from omegaconf import DictConfig, OmegaConf

from drqv2 import envs, utils
from drqv2.config.formatting import column_name
from drqv2.config.schema import length, regime_of
from drqv2.envs import ids, libraries
from drqv2.envs.env_process import ProcessEnv
from drqv2.envs.episode import LONG_EPISODE
from drqv2.envs.handles import EnvHandle, LocalEnv, as_tasks
from drqv2.envs.notices import notice
from drqv2.envs.observed import Choice, parts_of
from drqv2.envs.vector import HandleVector, VectorEnv
from drqv2.errors import UserError
from drqv2.run.target import own_factory
from drqv2.system import machine

_SHORT_EPISODE = 1_000  # agent steps: shorter episodes are never reported, even in a short run
_RESUMED = "stop the run and resume it with max_episode_steps=N resume_force=true"
_IN_FUNCTION = "do so in your function, say by gymnasium.wrappers.TimeLimit, and resume the run"


def require_renderer(cfg: DictConfig) -> str:
    """Return the name of what renders; if dm_control is to render anything, check that it can.

    Raises:
        UserError: it cannot.
    """
    if not regime_of(cfg).collects and cfg.eval_every_frames is None and cfg.get("then") is None:
        return "none needed"
    if cfg.env._target_ is not None or all(":" in name for name in task_names(cfg)):
        return "the environment's own"
    if cfg.obs_type != "state" or cfg.save_video or cfg.get("save_train_video"):
        return envs.require_backend()
    return "none needed"


def resolve_obs_type(cfg: DictConfig) -> None:
    """Resolve obs_type=auto in `cfg`, and print it: images, the state, or both, whichever observations have.

    dm_control's tasks can show both: on-policy regimes, which need many steps, learn from the state, others from
    pixels, unless cameras are chosen.

    Raises:
        UserError: the environment cannot be made.
    """
    if cfg.obs_type == "auto":
        name = task_names(cfg)[0]
        own = _own_factory(cfg, name)
        chosen = {"image_key": cfg.image_key, "parts": cfg.observation_parts, "render": cfg.render}
        chosen["cameras"] = cfg.cameras
        of_tasks = regime_of(cfg).obs_type if cfg.cameras is None else "pixels"
        cfg.obs_type = of_tasks if own is None else libraries.natural_obs_type(own, name, cfg.seed, **chosen)
        print(f"obs_type: {cfg.obs_type} (auto)")


def task_names(cfg: DictConfig) -> list[str]:
    """Return the names of a run's tasks, in the order of their indices; that of another library is LIBRARY:NAME."""
    return list(cfg.get("tasks") or [cfg.env_id or cfg.task_name])


def task_suffixes(cfg: DictConfig) -> list[str]:
    """Return how the names of each task's metrics end: `/walker_walk`, or `_env_index_2` as in mtrl."""
    names = task_names(cfg)
    if cfg.metric_names == "env_index":
        return [f"_env_index_{i}" for i in range(len(names))]
    return [f"/{column_name(name)}" for name in names]


def action_repeats(cfg: DictConfig) -> list[int]:
    """Return the environment frames in one agent step of each task."""
    return [int(setting(cfg, task, "action_repeat")) for task in task_names(cfg)]


def discounts(cfg: DictConfig) -> list[float]:
    """Return the discount of one agent step of each task."""
    return [float(setting(cfg, task, "discount")) for task in task_names(cfg)]


def setting(cfg: DictConfig, task: str, name: str) -> Any:
    """Return a task's value of a key that `per_task` may set."""
    own = (cfg.get("per_task") or {}).get(task, {})
    return own[name] if name in own else cfg.get(name)


def make_envs(cfg: DictConfig, stream: int, patience: str | None = None, truncated: str = _RESUMED) -> list[EnvHandle]:
    """Return the environments of a stream, task by task; each in a separate process where several can step at once.

    Actions have the size of the largest task's, see `drqv2.envs.handles.TaskEnv`.

    Args:
        cfg: the run's configuration.
        stream: `utils.TRAIN_ENV` or `utils.EVAL_ENV`.
        patience: what the user can do if a reset or a step takes longer than env_timeout_seconds.
        truncated: what the user can do to truncate an episode without an end.

    Raises:
        UserError: one cannot be made, or tasks show observations of different shapes.
    """
    names, training = task_names(cfg), stream == utils.TRAIN_ENV
    number = cfg.num_envs if training else cfg.num_eval_envs
    total = number * len(names)
    # EnvPool steps each of its environments in its own thread.
    here = not cfg.overlap or (not training and (total == 1 or is_pool(cfg)))
    serial = "overlap=false" if training or len(names) > 1 else "num_eval_envs=1"
    made: list[EnvHandle] = []
    try:
        for task, name in enumerate(names):
            for i in range(number):
                make = _maker(cfg, stream, task * number + i, name, truncated)
                made.append(LocalEnv(make) if here else _in_process(cfg, make, total, patience or _patience(serial)))
        return made if len(names) == 1 else as_tasks(made, names)
    except BaseException:
        for env in made:
            env.close()
        raise


# Arguments of envpool.make, and what sets them.
_SET_BY = {"task_id": "env_id", "name": "env_id", "num_envs": "num_envs", "seed": "seed", "batch_size": "envs_per_recv"}
_SET_BY |= {"env_type": "this project", "render_mode": "this project"}


def make_vector(cfg: DictConfig, step: int) -> VectorEnv:
    """Return the training environments of a regime that steps them all at once.

    Args:
        cfg: the run's configuration.
        step: agent steps so far. With the run's seed it seeds episodes that cannot be restored: those of EnvPool and of
            a gymnasium.vector.VectorEnv.

    Raises:
        UserError: one cannot be made, or does not support a setting.
    """
    seed, size = utils.spawn_seed(cfg.seed, utils.TRAIN_ENV, step), envs_per_process(cfg)
    if is_pool(cfg):
        _require_unset(cfg, "envs_per_process", "EnvPool steps its environments by threads")
        return _make_pool(cfg, cfg.num_envs, seed, cfg.envs_per_recv)
    if cfg.envs_per_recv not in (None, cfg.num_envs):
        raise UserError(f"envs_per_recv={cfg.envs_per_recv}: applies only to EnvPool with vector=auto; leave it out")
    if (own := _own_vector(cfg, seed)) is not None:
        return own
    makes = [_maker(cfg, utils.TRAIN_ENV, i) for i in range(cfg.num_envs)]
    if cfg.vector == "serial" or (cfg.vector == "auto" and not cfg.overlap):
        return HandleVector([LocalEnv(make) for make in makes])
    groups = [makes[i : i + size] for i in range(0, len(makes), size)]
    how = machine.render_threads(len(groups)), cfg.env_timeout_seconds, _patience("vector=serial")
    with ExitStack() as made:  # closes those made so far if another cannot be made
        handles: list[ProcessEnv] = []
        for group in groups:
            handles += ProcessEnv.sharing(group, *how)
            made.callback(handles[-1].close)
        made.pop_all()
    shared = "each its own" if size == 1 else f"up to {size} in each"
    return HandleVector(handles, f"{len(groups)} processes, {shared}" if len(groups) > 1 else "one process")


def _own_vector(cfg: DictConfig, seed: int) -> VectorEnv | None:
    """Return the vector that your own function makes; None if it makes single environments."""
    if cfg.vector != "auto" or cfg.env._target_ is None or cfg.env_id is not None:
        return None
    factory = _own_factory(cfg)
    assert factory is not None
    if "num_envs" not in inspect.signature(factory).parameters:
        return None
    from drqv2.envs.gymnasium_vector import GymnasiumVector, make_vector_env
    from drqv2.envs.vector_returns import close_vector

    offered = {"seed": seed, "task_name": cfg.task_name, "image_size": cfg.image_size}
    made = make_vector_env(factory, cfg.num_envs, **offered)
    if made is None:
        return None
    try:
        _require_unset(cfg, "envs_per_process", "your vector steps its environments itself")
        _require_unset(cfg, "cameras", "your vector is no MuJoCo simulation of dm_control's")
        _require_single_frames(cfg, "a gymnasium.vector.VectorEnv", "do both in your function")
        vector = GymnasiumVector(made, seed, _choice(cfg), cfg.image_size)
    except BaseException:
        close_vector(made, type(made).__name__)
        raise
    if cfg.max_episode_steps is not None:
        ends = "truncates evaluations; in training your vector ends its episodes itself"
        notice(f"max_episode_steps={cfg.max_episode_steps}: {ends}")
    vector.long_episode = _long_episode(cfg, cfg.task_name)
    vector.if_long = _if_long(cfg, utils.TRAIN_ENV, _IN_FUNCTION)
    return vector


def _require_unset(cfg: DictConfig, name: str, reason: str) -> None:
    if cfg[name] is not None:
        raise UserError(f"{name}={cfg[name]}: {reason}; leave it out")


def _require_single_frames(cfg: DictConfig, what: str, how: str) -> None:
    for name in ("action_repeat", "frame_stack"):
        if cfg[name] != 1:
            raise UserError(
                f"{name}={cfg[name]}: {what} repeats actions and stacks frames by itself; set {name}=1, {how}"
            )


def envs_per_process(cfg: DictConfig) -> int:
    """Return how many training environments share a process; by default enough for one process per core."""
    return int(cfg.envs_per_process or -(-cfg.num_envs // max(1, int(machine.cores()))))


def _in_process(cfg: DictConfig, make: Callable[[], envs.Environment], number: int, patience: str) -> ProcessEnv:
    """Return an environment in its own process, one of `number`."""
    return ProcessEnv(make, machine.render_threads(number), cfg.env_timeout_seconds, patience)


def _patience(serial: str) -> str:
    """Say what a user can do against time-outs; `serial` steps environments in the main process."""
    return f"increase env_timeout_seconds; or set {serial}: environments in the main process have no time limit"


def make_actor_vector(cfg: DictConfig, step: int, actor: int, restarts: int) -> VectorEnv:
    """Return the environments of one of several actors, stepped within its process.

    Args:
        cfg: the run's configuration.
        step: agent steps when the run was started or resumed; with the others it makes the seed.
        actor: its number.
        restarts: how often it has been replaced since.
    """
    number, key = cfg.num_envs // cfg.num_actors, (step, actor, restarts)
    if is_pool(cfg):
        return _make_pool(cfg, number, utils.spawn_seed(cfg.seed, utils.ACTOR, *key), threads=_threads_of_actor(cfg))
    names = (utils.spawn_seed(cfg.seed, utils.ACTOR, *key, i) for i in range(number))
    return HandleVector([LocalEnv(_maker(cfg, utils.TRAIN_ENV, name)) for name in names])


def is_pool(cfg: DictConfig) -> bool:
    """Return whether EnvPool steps the training environments by itself."""
    return cfg.get("vector", "auto") == "auto" and cfg.env_id is not None and ids.uses_envpool(cfg.env_id)


def _threads_of_actor(cfg: DictConfig) -> int:
    """Return how many threads step an actor's environments: its share of the machine; on a cluster the core it gets."""
    return 1 if cfg.cluster == "ray" else max(1, int(machine.cores() / cfg.num_actors))


def _make_pool(cfg: DictConfig, num_envs: int, seed: int, batch_size: int | None = None, threads: int = 0) -> VectorEnv:
    from drqv2.envs.pool import PoolVector

    _require_single_frames(cfg, "EnvPool", "and see +env.frame_skip and +env.stack_num")
    if cfg.env.get("from_pixels"):  # its threads lose the context of OpenGL, and the process with it
        raise UserError("env.from_pixels: rendering in EnvPool sometimes kills the process; use task=NAME for pixels")
    options = {"num_threads": threads} | env_options(cfg, cfg.env_id)
    pool = PoolVector(ids.pool_name(cfg.env_id), num_envs, seed, batch_size, choice=_choice(cfg), **options)
    for part in parts_of(pool.observation_spec()).values():
        _, *sides = part.shape
        if sides and sides != [cfg.image_size, cfg.image_size]:
            pool.close()
            raise UserError(
                f"image_size={cfg.image_size}: the images of {cfg.env_id} are {'x'.join(map(str, sides))}\n"
                "Set that image_size, or vector=serial or vector=processes, which resize images."
            )
    if cfg.max_episode_steps is None:
        pool.long_episode, pool.if_long = _long_episode(cfg, cfg.env_id), _if_long(cfg, utils.TRAIN_ENV, _RESUMED)
    return pool


def _choice(cfg: DictConfig) -> Choice:
    return Choice(cfg.obs_type, cfg.image_key, cfg.channels, _listed(cfg.observation_parts))


def _listed(values: Any) -> list[Any] | None:
    return None if values is None else list(values)


def env_options(cfg: DictConfig, env_id: str | None = None) -> dict[str, Any]:
    """Return the arguments in `env`: of one of dm_control's tasks, or of an environment of another library."""
    options: Any = OmegaConf.to_container(cfg.env, resolve=True)
    if env_id is None:
        return {name: value for name, value in options.items() if name != "_target_"}
    if cfg.max_episode_steps is not None:
        frames = cfg.max_episode_steps * setting(cfg, env_id, "action_repeat")
        options = libraries.of_length(env_id, options, frames)
    for name, key in _SET_BY.items() if ids.uses_envpool(env_id) else ():
        if name in options:
            raise UserError(f"env.{name}: is set by {key}; leave it out")
    return {name: value for name, value in options.items() if name != "_target_"}


def _own_factory(cfg: DictConfig, task: str | None = None) -> Callable[..., Any] | None:
    """Return what makes an environment that is none of dm_control's tasks, with the arguments in `env`."""
    env_id = cfg.env_id if task is None or ":" not in task else task
    if env_id is not None:
        return libraries.factory(env_id, env_options(cfg, env_id))
    return None if cfg.env._target_ is None else own_factory(cfg.env)


def _long_episode(cfg: DictConfig, task: str) -> int:
    """Return after how many agent steps an episode counts as long: half of an environment's, from 1,000 on."""
    frames = length(cfg)
    if frames is None:
        return LONG_EPISODE
    steps = frames // setting(cfg, task, "action_repeat")
    half = steps // (2 * (cfg.num_envs if cfg.get("total_timesteps") else 1))
    return int(min(LONG_EPISODE, max(_SHORT_EPISODE, half)))


def _if_long(cfg: DictConfig, stream: int, truncated: str) -> str:
    """Return what an episode without an end means for a run."""
    waits = "The evaluation waits for its end."
    if stream == utils.TRAIN_ENV:
        whole = regime_of(cfg).whole_episodes
        waits = "DrQ-v2 learns from it once it has ended." if whole else "Its return is logged once it has ended."
    return f"{waits} To truncate episodes, {truncated}."


def _maker(
    cfg: DictConfig, stream: int, index: int, task: str | None = None, truncated: str = _RESUMED
) -> Callable[[], envs.Environment]:
    name = cfg.task_name if task is None else task
    factory = _own_factory(cfg, task)
    return partial(
        envs.make,
        name,
        cfg.frame_stack,
        setting(cfg, name, "action_repeat"),
        cfg.seed,
        image_size=cfg.image_size,
        render=cfg.render,
        camera=setting(cfg, name, "camera"),
        cameras=_listed(cfg.cameras),
        factory=factory,
        options=env_options(cfg) if factory is None else None,
        stream=stream,
        index=index,
        obs_type=cfg.obs_type,
        image_key=cfg.image_key,
        channels=cfg.channels,
        observation_parts=_listed(cfg.observation_parts),
        max_episode_steps=cfg.max_episode_steps,
        long_episode=_long_episode(cfg, name),
        if_long=_if_long(cfg, stream, truncated),
    )
