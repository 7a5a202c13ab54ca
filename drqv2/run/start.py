"""Start or resume a run of any regime, and print its summary."""

from __future__ import annotations

from pathlib import Path

from omegaconf import DictConfig

from drqv2.errors import NotFiniteError, UserError
from drqv2.logging import provenance
from drqv2.run import factory
from drqv2.run.environments import require_renderer, resolve_obs_type
from drqv2.run.workspace import BaseWorkspace
from drqv2.snapshot.checkpoints import newest_readable
from drqv2.system import files
from drqv2.system.signals import StopSignals, resume_hint


def run_workspace(workspace: type[BaseWorkspace], cfg: DictConfig, work_dir: Path) -> float:
    """Start or resume the run in `work_dir`, train, and return what a sweep maximizes.

    Args:
        workspace: the Workspace of the regime.
        cfg: the checked configuration; `auto` values are resolved in place.
        work_dir: the run's directory; locked during the run.

    Raises:
        UserError: the configuration does not fit the machine, the environment or the files there.
        Stopped: the process was asked to stop, and a snapshot holds the run.
    """
    factory.prepare_machine(cfg)
    for name in ("agent_dir", "init_from"):
        if cfg[name]:
            cfg[name] = str(Path(cfg[name]).resolve())  # found again when the run is resumed from elsewhere
    resolve_obs_type(cfg)
    renderer = require_renderer(cfg)
    print(f"run directory: {work_dir}")
    compiled = "compiled" if cfg.compile else "not compiled"
    print(f"device: {cfg.device}, {cfg.precision}, {compiled}; renderer: {renderer}")
    if cfg.save_snapshot:
        print(f"after an interruption, {resume_hint(work_dir, soon=True)}")
    with files.locked(work_dir), StopSignals(work_dir) as stop:
        files.remove_leftovers(work_dir)
        if not files.has_snapshot(work_dir):
            _keep_foreign_episodes(work_dir)
        elif workspace.has_replay and not (work_dir / files.REPLAY).exists():
            return _return_without_replay(cfg, work_dir)
        run = workspace(cfg, work_dir, stop)
        try:
            provenance.record_start(work_dir, run.global_frame, run.device)
            with run.console:
                run.train()
        except NotFiniteError as e:
            otherwise = " resume_force=true, for example with a smaller lr" if files.has_snapshot(work_dir) else ""
            raise NotFiniteError(f"{e}\nNo snapshot holds that value: {resume_hint(work_dir)}{otherwise}") from e
        finally:
            run.close()
        run.conclude()
    return run.objective()


def _keep_foreign_episodes(run_dir: Path) -> None:
    """Refuse a directory whose episodes a new start would delete, unless they are of a start that had no snapshot yet.

    Raises:
        UserError: there are episodes of a run with save_snapshot=false or with its snapshots removed, or of no run.
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


def _return_without_replay(cfg: DictConfig, run_dir: Path) -> float:
    """Return the last evaluation's return of a finished run with keep_replay=false: a scheduler may start it again.

    Raises:
        UserError: it has not finished, or is asked to train for longer.
    """
    found = newest_readable(run_dir)
    assert found is not None
    path, saved = found
    config = saved["config"]
    after_a_step = saved["frame"] + config["action_repeat"] * config["num_envs"]
    if after_a_step <= max(cfg.num_train_frames, config["num_train_frames"]):
        raise UserError(
            f"{run_dir} has no replay (keep_replay=false deletes it at the end): it cannot be resumed\n"
            f"init_from={path} starts a new run with its weights."
        )
    print(f"nothing left to do: all num_train_frames={cfg.num_train_frames} are done, and the run's replay is deleted")
    return float(saved["progress"]["last_return"])
