"""Whole runs of regime=offline: what they learn from, write and resume, how they continue, and what is refused."""

from __future__ import annotations

import csv
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf
from safetensors.numpy import load_file, save_file

import eval as evaluation
import train
from drqv2.agents import offline
from drqv2.agents.drqv2 import DrQV2Agent
from drqv2.datasets import __main__ as datasets
from drqv2.errors import UserError
from drqv2.launch.command_line import launch
from drqv2.regimes.offline import OfflineWorkspace
from drqv2.run.hooks import Hooks
from drqv2.snapshot import file as snapshot
from tests.short_run import OFFLINE, assert_same, resume, rows, stored
from tests.task_run import RECORDER, run_tasks

SIZE = "replay_buffer_size"


def stored_config(run_dir: Path) -> Any:
    return OmegaConf.load(run_dir / "config.yaml")


@pytest.fixture(scope="module")
def data() -> Path:
    return stored()


def run(run_dir: Path, data: Path | str, *overrides: str) -> Path:
    launch(train.main, "cfgs", argv=[*OFFLINE, f"data={data}", f"hydra.run.dir={run_dir}", *overrides])
    return run_dir


def files_of(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in sorted(folder.iterdir())}


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("offline") / "run", data)


def refusal(capsys: pytest.CaptureFixture[str], *args: Any) -> str:
    with pytest.raises(SystemExit) as leaving:
        run(*args)
    assert leaving.value.code not in (0, None)
    return capsys.readouterr().err


def test_a_run_learns_from_data_that_it_does_not_change(data: Path, tmp_path: Path) -> None:
    before = files_of(data / "buffer")
    done = run(tmp_path / "run", data, "keep_replay=false")
    assert files_of(data / "buffer") == before
    assert not (done / "buffer").exists()
    assert [int(float(row["frame"])) for row in rows(done, "eval")] == [0, 40, 80, 120]
    table = rows(done, "train")
    assert [int(row["frame"]) for row in table] == list(range(20, 121, 20))
    assert {row["buffer_size"] for row in table} == {"240"}
    assert all(float(row["actor_bc_loss"]) > 0 for row in table)
    assert all(row["q_mean"] for row in table[1::2])


def test_it_makes_an_update_at_every_step(data: Path, tmp_path: Path) -> None:
    cfg = train.compose(*OFFLINE, data=data)
    with train.make_workspace(cfg, tmp_path / "run") as workspace:
        told = list(workspace.epochs())
    assert [(epoch.env_step, epoch.gradient_step) for epoch in told] == [(20, 20), (40, 40), (60, 60)]
    assert told[-1].collect.episodes == 0


@pytest.mark.parametrize(
    ("agent", "kind"),
    [
        ("drqv2_bc", offline.DrQV2BCAgent),
        ("bc", offline.BCAgent),
        ("cql", offline.CQLAgent),
        ("drqv2", DrQV2Agent),
    ],
)
def test_the_agent_is_chosen_by_name(agent: str, kind: type, data: Path, tmp_path: Path) -> None:
    cfg = train.compose(*OFFLINE, f"agent={agent}", data=data, eval_every_frames=None, num_train_frames=8)
    with train.make_workspace(cfg, tmp_path / "run") as workspace:
        learner: Any = workspace.agent
        before = {name: x.clone() for name, x in learner.actor.state_dict().items()}
        workspace.train()
        assert type(workspace.agent) is kind
        assert any((x != before[name]).any() for name, x in learner.actor.state_dict().items())


def test_an_interrupted_run_ends_in_the_same_bits(
    data: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    update = DrQV2Agent.update

    def update_and_signal(self: DrQV2Agent, replay_iter: Any, step: int) -> Any:
        if step == 33:
            os.kill(os.getpid(), signal.SIGTERM)
        return update(self, replay_iter, step)

    with monkeypatch.context() as m:
        m.setattr(DrQV2Agent, "update", update_and_signal)
        with pytest.raises(SystemExit) as leaving:
            run(tmp_path / "run", data)
    assert leaving.value.code == 75
    resume(tmp_path / "run")
    assert_same(whole, tmp_path / "run")


@pytest.mark.slow
def test_an_episode_that_is_damaged_later_is_not_sampled_after_a_resume(data: Path, tmp_path: Path) -> None:
    copy = broken(data, tmp_path / "copy", -1)
    done = run(tmp_path / "run", copy, "num_train_frames=60")
    path = copy / "episode_00000002.safetensors"  # linked, so that the run's is damaged, too
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    resume(done, "num_train_frames=120")
    assert [row["buffer_size"] for row in rows(done, "train")] == ["240"] * 3 + ["210"] * 3


@pytest.mark.slow
def test_without_evaluations_there_is_no_environment(data: Path, tmp_path: Path) -> None:
    # The environment cannot be made here: nothing of it is needed, on a resume neither, and nor is the data then.
    copy = tmp_path / "data"
    copy.mkdir()
    for path in (data / "buffer").iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    more = "eval_every_frames=null", "env._target_=tests.dot_env.there_is_no_such_thing", "num_train_frames=60"
    done = run(tmp_path / "run", copy, *more)
    for path in copy.iterdir():
        path.unlink()
    resume(done, "num_train_frames=120")
    assert snapshot.load(done / "snapshot.pt")["frame"] == 120
    assert not (done / "eval.csv").exists()


def write_hdf5(path: Path, episodes: list[Any]) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        for column, key in (("observation", "frame"), ("action", "action")):
            file[column] = np.concatenate([arrays[key] for arrays in episodes])
        for column in ("reward", "discount"):
            file[column] = np.concatenate([arrays[column][:, 0] for arrays in episodes])
        steps = [len(arrays["reward"]) for arrays in episodes]
        file["step_type"] = np.concatenate([[0.0, *[1.0] * (n - 2), 2.0] for n in steps])


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["public npz", "V-D4RL npz", "V-D4RL hdf5", "run directory"])
def test_other_layouts_give_the_same_run(layout: str, data: Path, whole: Path, tmp_path: Path) -> None:
    folder = data if layout == "run directory" else tmp_path / "data"
    folder.mkdir(exist_ok=True)
    episodes: list[Any] = [load_file(path) for path in sorted((data / "buffer").iterdir())]
    if layout == "V-D4RL hdf5":
        write_hdf5(folder / "all.hdf5", episodes)
    for i, arrays in enumerate(episodes):
        frame = arrays.pop("frame")
        if layout == "public npz":  # stacks of images
            arrays["observation"] = np.concatenate([frame[np.maximum(np.arange(31) - k, 0)] for k in (1, 0)], 1)
        else:
            arrays |= {"image": frame.transpose(0, 2, 3, 1), "is_terminal": 1 - arrays.pop("discount")[:, 0]}
        if layout.endswith("npz"):
            np.savez(folder / f"episode_{i:08}.npz", **arrays)
    done = run(tmp_path / "run", folder, "save_video=false")
    assert rows(done, "eval") == rows(whole, "eval")
    assert rows(done, "train") == rows(whole, "train")


@pytest.mark.slow
@pytest.mark.parametrize("target", ["FILE.hdf5", "npz:DIR", "npz:DIR frame_stack=2", "minari:drqv2/made-v0"])
def test_data_that_were_written_for_others_give_the_same_run(
    target: str, data: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("h5py", "minari"):
        pytest.importorskip(package)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    monkeypatch.chdir(tmp_path)
    datasets.main(["convert", str(data), *target.split()])
    done = run(tmp_path / "run", target.split()[0].removeprefix("npz:"), "save_video=false")
    for name in ("train", "eval"):
        assert rows(done, name) == rows(whole, name)


@pytest.mark.filterwarnings("ignore")  # minari's, on what its metadata lacks
def test_a_minari_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    minari = pytest.importorskip("minari")
    import gymnasium
    from minari.data_collector import EpisodeBuffer

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    rng, n = np.random.default_rng(0), 20
    episodes = [
        EpisodeBuffer(
            id=i,
            observations=list(rng.normal(size=(n + 1, 4)).astype(np.float32)),
            actions=list(rng.uniform(-2, 2, (n, 2)).astype(np.float32)),
            rewards=[1.0] * n,
            terminations=[False] * n,
            truncations=[False] * (n - 1) + [True],
        )
        for i in range(3)
    ]
    minari.create_dataset_from_buffers(
        "drqv2/tried-v0",
        episodes,
        action_space=gymnasium.spaces.Box(-2, 2, (2,), np.float32),
        observation_space=gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float32),
    )
    done = run(tmp_path / "run", "minari:drqv2/tried-v0", "obs_type=state", "eval_every_frames=null")
    assert {(row["buffer_size"], float(row["batch_reward"]) > 0) for row in rows(done, "train")} == {("60", True)}
    kept = load_file(done / "buffer/episode_00000001.safetensors")
    np.testing.assert_allclose(2 * kept["action"][1:], episodes[1].actions, atol=1e-6)  # from [-2, 2] to [-1, 1]


@pytest.mark.slow
def test_then_collects_in_the_same_run(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = "then=drqv2", "offline_frames=80", "num_train_frames=240", "num_seed_frames=0", "agent.num_expl_steps=0"
    done = run(tmp_path / "run", data, *more)
    told = capsys.readouterr().out
    assert "learnt from stored data until frame 80; then=drqv2 continues" in told
    assert [int(float(row["frame"])) for row in rows(done, "eval")] == [0, 40, 80, 120, 160, 200, 240]
    with open(done / "train.csv", newline="") as file:
        episodes = [row for row in csv.DictReader(file) if row["episode_reward"]]
    assert [row["frame"] for row in episodes] == ["140", "200"]
    assert [row["buffer_size"] for row in episodes] == ["270", "300"]  # the data, and what was collected
    assert snapshot.load(done / "snapshot.pt")["progress"]["gradient_step"] == 120
    resume(done, "num_train_frames=300")
    assert int(float(rows(done, "eval")[-1]["frame"])) == 300
    assert OmegaConf.load(done / "config.yaml").regime == "offline"


def test_from_python_the_next_part_is_another_workspace(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cfg = train.compose(*OFFLINE, data=data, then="drqv2", offline_frames=40, eval_every_frames=None)
    with train.make_workspace(cfg, tmp_path / "run") as workspace:
        workspace.train()
        workspace.train()
    hint = f"then=drqv2 continues: make_workspace(compose(resume={str(tmp_path / 'run')!r}))"
    assert hint in capsys.readouterr().out
    with train.make_workspace(train.compose(resume=str(tmp_path / "run"))) as workspace:
        assert isinstance(workspace, train.Workspace)
        assert workspace.global_frame == 40


@pytest.mark.slow
def test_an_interrupted_second_part_ends_in_the_same_bits(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = ["then=drqv2", "offline_frames=40", "num_train_frames=160", "num_seed_frames=0", "save_video=false"]
    expected = run(tmp_path / "whole", data, *more)
    act = train.Workspace.act

    def act_and_signal(self: train.Workspace, observations: Any) -> Any:
        if self.global_step == 55:
            os.kill(os.getpid(), signal.SIGTERM)
        return act(self, observations)

    with monkeypatch.context() as m:
        m.setattr(train.Workspace, "act", act_and_signal)
        with pytest.raises(SystemExit):
            run(tmp_path / "run", data, *more)
    resume(tmp_path / "run")
    assert_same(expected, tmp_path / "run")


@pytest.mark.slow
def test_a_kill_in_the_last_evaluation_of_the_first_part_loses_nothing(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = ["then=drqv2", "offline_frames=50", "num_train_frames=100", "num_seed_frames=0", "save_video=false"]
    expected = run(tmp_path / "whole", data, *more)
    evaluate = OfflineWorkspace.eval

    def eval_and_signal(self: OfflineWorkspace) -> Any:
        if self.global_frame == 50:
            os.kill(os.getpid(), signal.SIGTERM)
        return evaluate(self)

    with monkeypatch.context() as m:
        m.setattr(OfflineWorkspace, "eval", eval_and_signal)
        with pytest.raises(SystemExit):
            run(tmp_path / "run", data, *more)
    resume(tmp_path / "run")
    assert rows(tmp_path / "run", "eval") == rows(expected, "eval")
    assert [int(float(row["frame"])) for row in rows(expected, "eval")] == [0, 40, 50, 80, 100]


@pytest.mark.slow
def test_reset_needs_the_data(data: Path, tmp_path: Path) -> None:
    copy = broken(data, tmp_path / "copy", -1)
    with train.make_workspace(train.compose(*OFFLINE, data=copy), tmp_path / "run") as workspace:
        next(workspace.epochs())
        workspace.reset()
        assert workspace.global_frame == 0
        for path in copy.iterdir():
            path.unlink()
        next(workspace.epochs())
        with pytest.raises(UserError, match="holds no episodes"):
            workspace.reset()
        assert len(workspace.train().__dict__) > 5


@pytest.mark.slow
def test_the_replay_of_several_tasks_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    several = run_tasks(tmp_path / "several", RECORDER)
    state = "obs_type=state", "env._target_=null", "env_id=gymnasium:tests.task_envs:Long-v0", "action_repeat=1"
    told = refusal(capsys, tmp_path / "run", several, *state)
    assert f"python -m drqv2.datasets filter {several} NEW task=N" in told
    datasets.main(["filter", str(several), str(tmp_path / "second"), "task=1"])
    run(tmp_path / "run", tmp_path / "second", *state, "eval_every_frames=null")
    kept = load_file(min((tmp_path / "second").glob("episode_*")))
    assert "task" not in kept
    for path in sorted((several / "buffer").glob("episode_*")):
        if ((episode := load_file(path))["task"] == 1).all():
            np.testing.assert_array_equal(kept["reward"], episode["reward"])
            break


def test_data_of_another_action_repeat_are_refused(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = refusal(capsys, tmp_path / "run", data, "action_repeat=4")
    assert f"data={data}: its actions were held for 2 frames, those of the run are for 4; set action_repeat=2" in told
    datasets.main(["convert", str(data), str(tmp_path / "new")])
    assert "set action_repeat=2" in refusal(capsys, tmp_path / "run", tmp_path / "new", "action_repeat=4")


@pytest.mark.parametrize(
    ("overrides", "uses"),
    [
        (["task_name=another"], "another (tests.dot_env.make)"),
        (["env._target_=tests.envs.toys.Counter"], "cartpole_balance_sparse (tests.envs.toys.Counter)"),
        (["env._target_=null"], "cartpole_balance_sparse (dm_control)"),
        (["env._target_=null", "env_id=gymnasium:CartPole-v1"], "gymnasium:CartPole-v1"),
    ],
)
def test_data_of_another_environment_are_named_first(
    overrides: list[str], uses: str, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = "eval_every_frames=null", "num_train_frames=4", "log_every_frames=4", "obs_type=pixels"
    run(tmp_path / "run", data, *more, *overrides)
    told = capsys.readouterr().out
    of = "cartpole_balance_sparse (tests.dot_env.make)"
    assert f"warning: data={data} comes from {of}, the run uses {uses}\n" in told
    assert told.index("warning: data=") < told.index("image_size:") < told.index("data: 240 transitions")


def test_data_of_the_same_environment_are_not_named(whole: Path, data: Path, tmp_path: Path, capsys: Any) -> None:
    run(tmp_path / "run", data, "num_train_frames=4", "log_every_frames=4", "eval_every_frames=null")
    assert "warning: data=" not in capsys.readouterr().out


def sized(data: Path, folder: Path, side: int) -> Path:
    """Return a copy of the data with images of another size, in V-D4RL's layout."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    for i, path in enumerate(sorted((data / "buffer").iterdir())):
        arrays = load_file(path)
        image = rng.integers(0, 256, (len(arrays.pop("frame")), side, side, 3), np.uint8)
        np.savez(folder / f"{i}.npz", **(arrays | {"image": image}))  # type: ignore[arg-type]
    return folder


@pytest.mark.slow
def test_images_have_the_size_of_the_data(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, short = sized(data, tmp_path / "data", 64), "num_train_frames=40"
    for name, more in (("seen", []), ("blind", ["eval_every_frames=null"])):
        done = run(tmp_path / name, folder, short, *more)
        assert "image_size: 64 (auto: that of the data)" in capsys.readouterr().out
        assert stored_config(done).image_size == 64
        evaluation.main([str(done), "episodes=1", "film=none"])
        run(done, folder, "num_train_frames=80", *more)  # restarted by the same command line
        assert snapshot.load(done / "snapshot.pt")["frame"] == 80
    told = refusal(capsys, tmp_path / "wrong", folder, "image_size=84", "eval_every_frames=null")
    assert f"image_size=84: the images of data={folder} are 64x64; set image_size=64 or leave it out" in told


def test_images_that_are_not_square(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = broken(data, tmp_path / "bad", 0, frame=np.zeros((31, 3, 32, 48), np.uint8))
    told = refusal(capsys, tmp_path / "run", bad)
    assert f"data={bad}: its images are 32x48, those of environments are square; set eval_every_frames=null" in told


@pytest.mark.slow
def test_the_replay_follows_the_data(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train.compose("regime=offline", "task=quadruped_run", data="x").replay_buffer_size == "auto"
    assert train.compose("regime=offline", "replay_buffer_size=7e3", "task=quadruped_run", data="x")[SIZE] == 7000
    short, blind = "num_train_frames=40", "eval_every_frames=null"
    done = run(tmp_path / "run", data, short, blind)  # preset=debug sets 500
    assert stored_config(done)[SIZE] == 240
    assert snapshot.load(done / "snapshot.pt")["config"][SIZE] == 240
    assert "replay_buffer_size: 240 (auto: the data have 240 transitions)" in capsys.readouterr().out
    run(done, data, "num_train_frames=80", blind)
    assert "replay_buffer_size" not in capsys.readouterr().out  # nothing has changed
    done = run(tmp_path / "two", data, "num_train_frames=80", blind, "then=drqv2", "offline_frames=40")
    assert stored_config(done)[SIZE] == 1_000_000
    run(done, data, "num_train_frames=120", blind, "then=drqv2", "offline_frames=40")
    assert snapshot.load(done / "snapshot.pt")["frame"] == 120


def test_hooks_work(data: Path, tmp_path: Path) -> None:
    steps: list[int] = []
    with train.make_workspace(train.compose(*OFFLINE, data=data), tmp_path / "run") as workspace:
        summary = workspace.train(Hooks(on_step=steps.append, stop=lambda stats: stats.frame == 80))
    assert steps == list(range(40))
    assert summary.stopped


# What is refused


def broken(data: Path, folder: Path, number: int, **arrays: np.ndarray) -> Path:
    """Return a copy of the data in which an episode has other arrays."""
    folder.mkdir()
    for path in (data / "buffer").iterdir():
        found = load_file(path)
        save_file(found | (arrays if int(path.stem[-8:]) == number else {}), folder / path.name)
    return folder


def test_bad_data_is_named_and_nothing_is_lost(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reward = np.zeros((31, 1), np.float32)
    reward[7] = np.nan
    bad = broken(data, tmp_path / "bad", 3, reward=reward)
    before = files_of(bad)
    told = refusal(capsys, tmp_path / "run", bad)
    assert "episode_00000003.safetensors: row 7: reward is nan" in told
    assert "skip_bad=true" in told
    assert files_of(bad) == before
    (bad / "episode_00000005.safetensors").write_bytes(b"nonsense")
    told = refusal(capsys, tmp_path / "other", bad)
    assert "episode_00000003" in told
    assert "episode_00000005.safetensors: damaged" in told


def test_a_start_that_fails_leaves_no_copies(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    for path in (data / "buffer").iterdir():
        arrays = load_file(path)
        frame = arrays.pop("frame")
        image = {"image": frame.transpose(0, 2, 3, 1), "is_terminal": 1 - arrays.pop("discount")[:, 0]}
        everything: Any = arrays | image
        np.savez(folder / f"{path.stem}.npz", **everything)
    told = refusal(capsys, tmp_path / "run", folder, "replay_buffer_size=100")
    assert f"replay_buffer_size=100: smaller than data={folder}; leave it out, or set at least 240" in told
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_data_of_another_shape_is_named(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = refusal(capsys, tmp_path / "a", data, "image_size=40")
    assert f"image_size=40: the images of data={data} are 32x32; set image_size=32 or leave it out" in told
    bad = broken(data, tmp_path / "sizes", 2, frame=np.zeros((31, 3, 40, 40), np.uint8))
    told = refusal(capsys, tmp_path / "c", bad)
    assert "episode_00000002.safetensors: frame 3x40x40: that of the run is 3x32x32" in told
    bad = broken(data, tmp_path / "bad", 2, action=np.zeros((31, 5), np.float32))
    assert "episode_00000002.safetensors: action 5: that of the run is 1" in refusal(capsys, tmp_path / "b", bad)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data=null"], "data is missing: give the episodes"),
        (["data=nowhere/at_all"], "there is no such directory"),
        (["agent=dqn"], "agent=dqn"),
        (["agent.update_every_steps=2"], "must be 1 with regime=offline"),
        (["offline_frames=20"], "applies only to then=drqv2"),
        (["num_envs=2"], "num_envs=2 applies only to then=drqv2"),
        (["seed_updates=5"], "seed_updates=5 applies only to then=drqv2"),
        (["then=drqv2", "offline_frames=1"], "offline_frames=1: shorter than one agent step"),
        (["then=drqv2"], "needs offline_frames below"),
        (["then=drqv2", "offline_frames=20", "save_snapshot=false"], "resumes from a snapshot"),
        (["agent=cql", "agent.cql_samples=0"], "at least 1"),
        (["agent=cql", "agent.cql_alpha=high"], "agent.cql_alpha=high: must be a number"),
        (["agent=bc", "agent.bc_alpha=1"], "agent.bc_alpha: the chosen agent takes no such argument"),
        (["test_in_train=true", "stop_return=5"], "nothing is collected"),
        (["then=drqv2", "offline_frames=500"], "needs offline_frames below"),
        (["replay_buffer_size=100"], "replay_buffer_size=100"),
    ],
)
def test_what_does_not_fit_together_is_refused(
    overrides: list[str], message: str, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = refusal(capsys, tmp_path / "run", data, *overrides)
    assert message in told
    assert "Traceback" not in told


def test_an_agent_is_not_chosen_on_resume(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        resume(whole, "agent=bc")
    assert "a agent cannot" not in (told := capsys.readouterr().err)
    assert "agent=bc" in told
