"""Learning from stored episodes: update, log, evaluate, save; nothing is collected."""

from __future__ import annotations

import math
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from dm_env import specs

from drqv2 import utils
from drqv2.config.formatting import counted
from drqv2.datasets.copying import fill_replay
from drqv2.datasets.episodes import Arrays
from drqv2.datasets.learnable import first_learnable
from drqv2.datasets.minari import MINARI
from drqv2.datasets.options import ReadOptions
from drqv2.datasets.origin import require_fit
from drqv2.errors import UserError
from drqv2.logging.diagnostics import diagnose
from drqv2.logging.video import VideoRecorder
from drqv2.replay.loader import make_replay_loader
from drqv2.replay.observations import OBSERVATION, StoredArray, stored_arrays, stored_in
from drqv2.replay.storage import ReplayBufferStorage
from drqv2.run import factory
from drqv2.run.environments import make_envs
from drqv2.run.finite import require_finite
from drqv2.run.hooks import Hooks
from drqv2.run.stats import RunSummary
from drqv2.run.workspace import BaseWorkspace
from drqv2.system import files
from drqv2.system.files import REPLAY

_UNSEEN = 84  # pixels: image_size=auto without images to learn from; environments still need a size
_COLLECTED = 1_000_000  # transitions: least size of a replay in which then=drqv2 collects, as in regime=drqv2


class OfflineWorkspace(BaseWorkspace):
    """A run that learns from a data set, which becomes its replay. An update counts as an agent step.

    Environments are used for evaluations only; without evaluations none is made.
    """

    phases = ("data", "update", "evaluation", "snapshot")
    update_phases = ("data", "update")
    replay_storage: ReplayBufferStorage

    def setup(self) -> None:
        """Make replay, agent, recorder and predicates, and environments if there are evaluations."""
        cfg = self.cfg
        if not cfg.data.startswith(MINARI):
            cfg.data = str(Path(cfg.data).absolute())  # in the stored configuration
        if cfg.offline_frames is not None:
            self.length_key = "offline_frames"
        resumed = files.has_snapshot(self.work_dir)
        if not resumed:
            require_fit(cfg.data, cfg)
            self.fit_image_size()
        self.eval_envs = [] if cfg.eval_every_frames is None else make_envs(cfg, utils.EVAL_ENV)
        self.owns(*self.eval_envs)
        env: Any = self.eval_envs[0] if self.eval_envs else self.specs_of_data()
        self.shapes = _stored_shapes(env, cfg.frame_stack)
        if self.eval_envs:
            filmed = self.work_dir if cfg.save_video else None
            self.video_recorder = VideoRecorder(filmed, **factory.film_settings(cfg, env))
            self.owns(self.video_recorder)
        self.agent = factory.make_agent(cfg, env, self.device)
        self.specs = env
        if resumed:
            self.make_replay()

        self.train_until_step = utils.Until(self.num_frames, cfg.action_repeat)
        epoch_frames = cfg.epoch_frames or cfg.eval_every_frames  # by default an epoch ends where an evaluation is due
        self.eval_every_step = self.kept("eval_every_step", utils.Every(epoch_frames, cfg.action_repeat))
        self.log_every_step = self.kept("log_every_step", utils.Every(cfg.log_every_frames, cfg.action_repeat))
        self.diagnose_every_step = self.kept(
            "diagnose_every_step", utils.Every(cfg.diagnostics_every_frames, cfg.action_repeat)
        )
        self.rows_at = 0.0  # seconds of training at the newest row of train.csv

    def fit_image_size(self) -> None:
        """Resolve image_size=auto: the side of the data's images, and then of the environment's.

        Raises:
            UserError: image_size is another, or the data's images are not square and so not those of an environment.
        """
        cfg = self.cfg
        arrays = {} if cfg.obs_type == "state" else self.first_episode(cfg.data)
        seen = (array for name, array in sorted(arrays.items()) if name.partition(".")[0] == "frame")
        sizes = dict.fromkeys(array.shape[2:] for array in seen)
        if not sizes:
            cfg.image_size = _UNSEEN if cfg.image_size == "auto" else cfg.image_size
            return
        (height, width), *others = sizes
        if (height != width or others) and (cfg.eval_every_frames is not None or cfg.then is not None):
            shown = " and ".join(f"{height}x{width}" for height, width in sizes)
            those = "of one size" if others else "square"
            raise UserError(
                f"data={cfg.data}: its images are {shown}, those of environments are {those}; set "
                "eval_every_frames=null, without then"
            )
        if cfg.image_size not in ("auto", height):
            raise UserError(
                f"image_size={cfg.image_size}: the images of data={cfg.data} are {height}x{width}; set "
                f"image_size={height} or leave it out"
            )
        if cfg.image_size == "auto":
            print(f"image_size: {height} (auto: that of the data)")
        cfg.image_size = height

    def make_replay(self) -> None:
        """Make the replay and the iterator over its batches, once `begin` has resolved replay_buffer_size=auto."""
        cfg, replay_dir = self.cfg, self.work_dir / REPLAY
        stored = factory.data_specs(self.specs)
        self.replay_storage = ReplayBufferStorage(stored, replay_dir, cfg.replay_buffer_size, cfg.frame_stack)
        options = factory.loader_options(cfg, self.specs, self.agent, self.replay_storage, self.device)
        sizes = cfg.replay_buffer_size, cfg.batch_size, cfg.replay_buffer_num_workers
        returns = cfg.nstep, cfg.discount
        self.replay_loader = make_replay_loader(replay_dir, *sizes, cfg.save_snapshot, *returns, **options)
        self.owns(self.replay_loader)
        self.replay_iter = self.time_shares.timed_iterator("data", iter(self.replay_loader))

    def specs_of_data(self) -> DataSpecs:
        """Return the specs of the data; those of a resumed run are in its replay."""
        replay_dir = self.work_dir / REPLAY
        place = str(self.work_dir) if any(replay_dir.glob("episode_*")) else self.cfg.data
        return DataSpecs(self.first_episode(place), self.cfg.frame_stack)

    def first_episode(self, place: str) -> Arrays:
        """Return the arrays of the first episode of a data set; raise UserError if there is none to learn from."""
        return first_learnable(place, ReadOptions.of(self.cfg)).arrays

    def begin(self) -> None:
        """Fill the replay with the data.

        Raises:
            UserError: some of it cannot be used, does not fit the environment, or is more than replay_buffer_size.
        """
        cfg, replay_dir = self.cfg, self.work_dir / REPLAY
        left = ReplayBufferStorage((), replay_dir)  # of a start that died before its first snapshot
        left.delete()
        try:
            size = None if cfg.replay_buffer_size == "auto" else cfg.replay_buffer_size
            transitions = fill_replay(cfg.data, replay_dir, self.shapes, size, ReadOptions.of(cfg))
            if size is None:
                cfg.replay_buffer_size = transitions if cfg.then is None else max(transitions, _COLLECTED)
                data = counted(transitions, "transition")
                print(f"replay_buffer_size: {cfg.replay_buffer_size} (auto: the data have {data})")
            self.make_replay()
            self.snapshots.store_config()  # with `auto` resolved
        except BaseException:
            left.delete()
            raise
        self.replay_storage.add_existing()
        episodes = counted(self.replay_storage.num_episodes, "episode")
        print(f"data: {counted(transitions, 'transition')} in {episodes} of {cfg.data}")

    def require_beginning(self) -> None:
        """Raise UserError if the data is gone."""
        super().require_beginning()
        self.first_episode(self.cfg.data)

    def train(self, hooks: Hooks | None = None, epochs: float = math.inf) -> RunSummary:
        """Learn until the end, or for a number of epochs; see `BaseWorkspace.train`."""
        with self.turns.taken():
            self.epoch.start(hooks or Hooks(), epochs)
            while self.train_until_step(self.global_step):
                # at the end of an epoch save, evaluate, call hooks; save if due; stop if asked
                if self.epoch.between_rounds(epoch_ends=self.eval_every_step(self.global_step)):
                    break

                # update the agent
                with self.time_shares.spent_on("update"):
                    metrics = self.agent.update(self.replay_iter, self.global_step)
                self.logger.log_metrics(metrics, self.global_frame, ty="train")
                self.progress.step += 1
                self.progress.gradient_step += 1
                self.progress.updated_step = self.global_step

                # try to log; the last updates have a row of their own
                if self.log_every_step(self.global_step) or not self.train_until_step(self.global_step):
                    self.log()
            self.epoch.finish()
        return self.epoch.summary()

    def log(self) -> None:
        """Write a row of train.csv."""
        require_finite(self)
        if self.diagnose_every_step(self.global_step):
            self.logger.log_metrics(self.diagnostics(), self.global_frame, ty="train")
        total_time = self.timer.total_time()
        speed = (self.global_step - self.progress.last_row_step) / max(total_time - self.rows_at, 1e-9)
        self.rows_at, self.progress.last_row_step = total_time, self.global_step
        with self.logger.log_and_dump_ctx(self.global_frame, ty="train") as log:
            log("fps", speed * self.action_repeat)
            log("total_time", total_time)
            log("buffer_size", len(self.replay_storage))
            log("step", self.global_step)

    def diagnostics(self) -> dict[str, float]:
        """Return diagnostics of the learner on the newest episode, and its gradient norms."""
        episode = self.replay_storage.load_episode(max(self.replay_storage.newest_of_tasks().values()))
        found = diagnose(self.agent, episode, self.cfg.frame_stack, self.cfg.discount, self.device)
        return found | self.snapshots.last_gradient_norms()

    @cached_property
    def num_frames(self) -> int:
        """Environment frames that the updates count as."""
        return int(self.cfg.offline_frames or self.cfg.num_train_frames)

    @cached_property
    def round_steps(self) -> int:
        """Updates between two pauses of the loop."""
        return 1

    def save_snapshot(self) -> None:
        """Copy everything that the run needs to continue from this step; a thread writes it."""
        self.snapshots.save(
            needs=self.replay_storage.first_needed,
            replay_storage=self.replay_storage.state_dict(),
            replay_loader=self.replay_loader.state_dict(),
        )

    def load_snapshot(self, saved: dict[str, Any]) -> None:
        """Restore the replay."""
        self.rows_at, self.progress.last_row_step = saved["timer"], self.global_step
        self.replay_storage.load_state_dict(saved["replay_storage"], keep_from=self.checkpoints.needed)
        self.replay_loader.load_state_dict(saved["replay_loader"])

    def next_part(self) -> str:
        """Return the message to print when another regime takes over."""
        if self.cfg.then is None or self.epoch.stopped:
            return ""
        return f"learnt from stored data until frame {self.global_frame}; then={self.cfg.then} continues"


class DataSpecs:
    """The specs of a data set's episodes, in place of an environment's."""

    step_seconds: float | None = None

    def __init__(self, arrays: Arrays, frame_stack: int) -> None:
        action = arrays["action"]
        self._action = specs.BoundedArray(action.shape[1:], np.float32, -1.0, 1.0, "action")
        seen = {stored.key: _spec(stored, arrays[stored.tensor], frame_stack) for stored in stored_in(arrays)}
        self._observation: Any = seen.get(None, seen)

    def observation_spec(self) -> Any:
        """Return the spec of a stack of images, or of a vector; or a dict of them, images first."""
        return self._observation

    def action_spec(self) -> Any:
        """Return the spec of an action, in [-1, 1]."""
        return self._action


def _spec(stored: StoredArray, array: np.ndarray, frame_stack: int) -> Any:
    name = stored.key or OBSERVATION
    if not stored.stacked:
        return specs.Array(array.shape[1:], np.float32, name)
    channels, *size = array.shape[1:]
    return specs.BoundedArray((frame_stack * channels, *size), np.uint8, 0, 255, name)


def _stored_shapes(env: Any, frame_stack: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a row of an episode that fits an environment, by the names of its arrays."""
    shapes = {"action": tuple(env.action_spec().shape)}
    for stored, spec in stored_arrays(env.observation_spec(), frame_stack).items():
        channels, *size = spec.shape
        shapes[stored.tensor] = (channels // frame_stack, *size) if stored.stacked else tuple(spec.shape)
    return shapes
