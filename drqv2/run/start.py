"""Start or resume a run of any regime, and print its summary."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from omegaconf import DictConfig

from drqv2.config.cfgs import CFGS, load
from drqv2.config.formatting import show
from drqv2.config.schema import find, regime_of
from drqv2.errors import EnvError, NotFiniteError, UserError
from drqv2.launch.compose import new_run_dir
from drqv2.logging import provenance
from drqv2.run import factory, objective
from drqv2.run.environments import require_renderer, resolve_obs_type
from drqv2.run.epochs import reached
from drqv2.run.progress import Progress
from drqv2.run.workspace import BaseWorkspace
from drqv2.snapshot.checkpoints import newest_readable
from drqv2.system import files
from drqv2.system.signals import StopSignals, resume_hint


def open_workspace(regime: str, cfg: DictConfig, work_dir: Path, stop: StopSignals | None = None) -> BaseWorkspace:
    """Open the run in `work_dir`, new or resumed, before its loop begins; leaving the context unlocks the directory.

    Args:
        regime: its regime, which may be that of its second part, see `regimes_left`.
        cfg: the checked configuration; `auto` values are resolved in place.
        work_dir: the run's directory; locked until then.
        stop: tells whether the process was asked to stop; by default, only while the run trains.

    Raises:
        UserError: the configuration does not fit the machine, the environment or the files there.
    """
    workspace: type[BaseWorkspace] = find(regime, cfg.get("regime_dir")).load_workspace()
    factory.prepare_machine(cfg)
    for name in ("agent_dir", "regime_dir", "init_from"):
        if cfg.get(name):
            cfg[name] = str(Path(cfg[name]).resolve())  # found again when the run is resumed from elsewhere
    if cfg.init_from and Path(cfg.init_from).is_dir():
        cfg.init_from = str(Path(cfg.init_from) / files.SNAPSHOTS[0])
    if cfg.init_parts is not None and not cfg.init_from and not files.has_snapshot(work_dir):
        raise UserError(f"init_parts={show(list(cfg.init_parts))}: needs init_from=FILE")
    resolve_obs_type(cfg)
    renderer = require_renderer(cfg)
    print(f"run directory: {work_dir}")
    compiled = "compiled" if cfg.compile else "not compiled"
    print(f"device: {cfg.device}, {cfg.precision}, {compiled}; renderer: {renderer}")
    if _too_large_for_cpu(cfg):
        print(f"without a GPU, these sizes take hours for each 100,000 frames{_smaller(cfg)}")
    with ExitStack() as acquired:
        acquired.enter_context(files.locked(work_dir))
        files.remove_leftovers(work_dir)
        if not files.has_snapshot(work_dir):
            _keep_foreign_episodes(work_dir)
        else:
            _take_resolved(cfg, work_dir)
        if files.has_snapshot(work_dir) and workspace.has_replay and not (work_dir / files.REPLAY).exists():
            _require_replay(cfg, work_dir)
        run = workspace(cfg, work_dir, stop)
        run.lock = acquired.pop_all()
    with ExitStack() as acquired:
        acquired.push(run)
        provenance.record_start(work_dir, run.global_frame, run.device)
        acquired.pop_all()
    return run


def _smaller(cfg: DictConfig) -> str:
    """Return which preset has smaller sizes for the run's agent, if there is one."""
    regime, target = regime_of(cfg), cfg.agent._target_
    name = next((name for name, agent in regime.agents.items() if agent.target == target), "drqv2")
    fitting = [preset for preset in ("cpu", "spq_cpu") if name in load(CFGS / "preset" / f"{preset}.yaml").for_agents]
    return f"; preset={fitting[0]} has smaller ones" if fitting else ""


def _too_large_for_cpu(cfg: DictConfig) -> bool:
    """Return whether this is a long run from pixels on a CPU with about the paper's sizes."""
    regime = regime_of(cfg)
    if cfg.device != "cpu" or cfg.obs_type == "state" or not (regime.collects and regime.whole_episodes):
        return False
    sizes = cfg.batch_size * cfg.agent.get("hidden_dim", 0)
    return bool(sizes >= 128 * 512 and cfg.num_train_frames >= 50_000)


def make_workspace(cfg: DictConfig, work_dir: str | Path | None = None) -> BaseWorkspace:
    """Open a run, new or resumed. Use it as a context manager, which closes it.

    Args:
        cfg: what `compose` returned.
        work_dir: the run's directory; by default a new one below exp_local/, or that of `resume`. If it holds a
            snapshot, the run is resumed from it.

    Raises:
        UserError: the configuration does not fit the machine, the environment or the files there.
    """
    run_dir = (new_run_dir(cfg) if work_dir is None else Path(work_dir)).resolve()
    if cfg.resume and run_dir != Path(cfg.resume).resolve():
        raise UserError(f"resume={cfg.resume} and another directory, {run_dir}: give only one of them")
    run_dir.mkdir(parents=True, exist_ok=True)
    return open_workspace(regimes_left(cfg, run_dir)[0], cfg.copy(), run_dir)


def regimes_left(cfg: DictConfig, work_dir: Path) -> list[str]:
    """Return the regimes that a run still has to train: one, or two with regime=offline and `then`."""
    if cfg.get("then") is None:
        return [cfg.regime]
    found = newest_readable(work_dir) if files.has_snapshot(work_dir) else None
    if found is not None:
        made, end = found[1]["progress"], cfg.offline_frames // cfg.action_repeat
        # At the end of the first part its last evaluation may still be due.
        if made["step"] > end or (made["step"] == end and made["epoch_step"] == end):
            return [cfg.then]
    return [cfg.regime, cfg.then]


@contextmanager
def open_run(regime: str, cfg: DictConfig, work_dir: Path) -> Iterator[BaseWorkspace | RunFinished]:
    """Open the run in `work_dir`, new or resumed, to be trained; then print its summary.

    If nothing is left to do and the replay is deleted, it is a `RunFinished`.

    A new directory is removed again if the run fails to start, or at its first step.

    Raises:
        UserError: the configuration does not fit the machine, the environment or the files there.
        Stopped: the process was asked to stop, and a snapshot holds the run.
    """
    new = files.is_unbegun(work_dir)
    with StopSignals(work_dir) as stop:
        try:
            run = open_workspace(regime, cfg, work_dir, stop)
        except RunFinished as finished:
            yield finished
            return
        except Exception:
            if new and not files.in_use(work_dir):  # by a run that began meanwhile
                files.remove_failed(work_dir)
            raise
        if cfg.save_snapshot:
            print(f"after an interruption, {resume_hint(work_dir, soon=True)}")
        with run:
            try:
                with _removed_if_unbegun(run, new):
                    yield run
            except EnvError as e:
                then = f"then {resume_hint(work_dir)}" if files.has_snapshot(work_dir) else "and start again"
                raise type(e)(f"{e}\nFix the environment, {then}") from e
            except NotFiniteError as e:
                if not files.has_snapshot(work_dir):
                    raise
                otherwise = f"{resume_hint(work_dir)} resume_force=true, for example with a smaller lr"
                raise NotFiniteError(f"{e}\nNo snapshot holds that value: {otherwise}") from e
            run.close()
            if part := run.next_part():
                print(part)
            else:
                conclude(run)


@contextmanager
def _removed_if_unbegun(run: BaseWorkspace, new: bool) -> Iterator[None]:
    """Remove the directory of a new run whose first step fails, such as the agent's first action."""
    try:
        yield
    except Exception:
        if new and run.global_step == run.progress.evaluations == 0:  # a resume would start there, too
            run.close()
            files.remove_failed(run.work_dir)
        raise


def conclude(run: BaseWorkspace) -> None:
    """Print a finished run's returns and where its files are; keep or delete its replay, as configured."""
    lines, folder, storage = [], run.work_dir, run.replay_storage
    if run.progress.evaluations:
        last, best = run.progress.last_return, run.progress.best_return
        lines.append(f"evaluation return: {last:.1f} at the end, {best:.1f} at best")
    made = {"curves": "eval.csv", "TensorBoard": "tb", "videos": "eval_video", "snapshot": "snapshot.pt"}
    made |= {"best weights": "best.pt"} if run.cfg.save_best else {}
    lines += [f"{what}: {folder / name}" for what, name in made.items() if (folder / name).exists()]
    if run.progress.gradient_step == 0:
        lines.insert(0, f"warning: the agent has never learnt: {why_unlearnt(run)}")
    if lines:
        print("\n".join(lines))
    if storage is None:
        return
    size = f"{storage.nbytes() / 1e9:.2f} GB of replay in {storage.replay_dir}"
    if run.cfg.keep_replay:
        print(f"kept {size} (keep_replay=false deletes it at the end)")
    else:
        files.discard(storage.replay_dir)
        print(f"deleted {size}; init_from=snapshot.pt still starts a run with its weights, resume= does not")


def why_unlearnt(run: BaseWorkspace) -> str:
    """Return why a run has made no update, and how to change that."""
    cfg, storage = run.cfg, run.replay_storage
    if storage is not None and not storage.num_episodes:
        frames = f"{run.length_key}={cfg[run.length_key]}"
        return f"no episode has ended, and DrQ-v2 learns from finished ones; raise {frames} or set max_episode_steps=N"
    if run.global_frame <= cfg.get("num_seed_frames", 0):
        return f"the run has no more than num_seed_frames={cfg.num_seed_frames} frames"
    return f"{run.length_key}={cfg[run.length_key]} is too short for an update"


class RunFinished(UserError):
    """The run has finished and its replay is gone; a scheduler may have restarted it.

    Args:
        reason: for the user.
        value: what it returns to a sweep.
    """

    def __init__(self, reason: str, value: float) -> None:
        super().__init__(reason)
        self._value = value

    def train(self) -> None:
        """Say why nothing is left to do."""
        print(self)

    def objective(self) -> float:
        """Return the run's value to a sweep."""
        return self._value


def _keep_foreign_episodes(run_dir: Path) -> None:
    """Refuse a directory whose episodes a new start would delete.

    Those of a start that died before its first snapshot may be deleted.

    Raises:
        UserError: the episodes come from a run without snapshots or from no run.
    """
    config = run_dir / "config.yaml"
    began = config.is_file() and "\nsave_snapshot: true" in config.read_text(errors="replace")
    began &= {path.name for path in run_dir.glob("weights_*.pt")} <= {"weights_0.pt"}
    evaluations = run_dir / "eval.csv"  # the one at frame 0 may be done before the first snapshot is written
    began &= not evaluations.is_file() or len(evaluations.read_text(errors="replace").splitlines()) <= 2
    if not began and any((run_dir / files.REPLAY).glob("episode_*")):
        raise UserError(
            f"{run_dir / files.REPLAY} holds episodes and there is no snapshot: a new run would delete them\n"
            "Choose another hydra.run.dir, or move them away."
        )


def _take_resolved(cfg: DictConfig, run_dir: Path) -> None:
    """Replace `auto` by its value at the first start, where that came from the run's data, which may be gone by now."""
    names = [name for name in ("image_size", "replay_buffer_size") if cfg.get(name) == "auto"]
    if names and (found := newest_readable(run_dir)) is not None:
        cfg.update({name: found[1]["config"][name] for name in names})


def _require_replay(cfg: DictConfig, run_dir: Path) -> None:
    """Refuse a run whose replay was deleted.

    Raises:
        RunFinished: keep_replay=false has deleted it at the end.
        UserError: the run has not finished, or a longer one is requested.
    """
    found = newest_readable(run_dir)
    assert found is not None
    path, saved = found
    config = saved["config"]
    after_a_step = saved["frame"] + config["action_repeat"] * config["num_envs"]
    why = f"all num_train_frames={cfg.num_train_frames} are done"
    if reached(Progress(**saved["progress"]), cfg.stop_return):
        why = f"stop_return={cfg.stop_return} reached"
    elif after_a_step <= max(cfg.num_train_frames, config["num_train_frames"]):
        raise UserError(
            f"{run_dir} has no replay (keep_replay=false deletes it at the end): it cannot be resumed\n"
            f"init_from={path} starts a new run with its weights."
        )
    value = float(saved["progress"]["last_return"])
    if cfg.objective is not None:
        value = objective.value(cfg.objective, run_dir)
    raise RunFinished(f"nothing left to do: {why}, and the run's replay is deleted", value)
