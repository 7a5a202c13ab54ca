"""Meta-World's tasks through EnvPool: what they show, how they end, their names."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import train
from drqv2 import envs, utils
from drqv2.config.regimes.multitask import TASK_GROUPS
from drqv2.envs import ids, libraries, metaworld
from drqv2.errors import UserError
from drqv2.launch.command_line import launch
from tests.short_run import rows

if find_spec("envpool") is None:  # not imported, which must come after OpenGL
    pytest.skip("EnvPool is not installed", allow_module_level=True)

REACH = "metaworld:reach-v3"


def make(name: str = REACH, seed: int = 1, **options: Any) -> envs.Environment:
    factory = libraries.factory(name, options)
    return envs.make(name, 1, 1, seed, factory=factory, stream=utils.TRAIN_ENV, index=0, obs_type="state")


def played(env: envs.Environment, steps: int, seed: int = 0) -> list[Any]:
    generator = np.random.default_rng(seed)
    time_steps = [env.reset()]
    while len(time_steps) <= steps and not time_steps[-1].last():
        time_steps.append(env.step(generator.uniform(-1, 1, 4)))
    return time_steps


def test_the_state_has_the_goal_in_its_last_three_numbers() -> None:
    env = make()
    spec, action = env.observation_spec(), env.action_spec()
    assert (spec.shape, spec.dtype) == ((39,), np.float32)
    assert (action.shape, action.dtype) == ((4,), np.float32)
    time_steps = played(env, 5)
    goals = {tuple(time_step.observation[-3:].tolist()) for time_step in time_steps}
    assert len(goals) == 1, "the goal stays"
    (goal,) = goals
    assert all(number != 0 for number in goal)
    assert not np.array_equal(time_steps[0].observation[:3], time_steps[5].observation[:3]), "the hand moves"
    other = tuple(played(env, 1)[0].observation[-3:].tolist())
    assert other != goal, "another episode, another goal"
    env.close()


def test_pictures_without_shadows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found, copies = [], []
    for options in ({}, {"shadows": True}, {"shadows": False}, {"shadows": False}):
        env = make("metaworld:button-press-topdown-v3", **options, render_camera_id=2)
        found.append(([time_step.observation for time_step in played(env, 4)], env.render(84, 84).astype(int)))
        env.close()
        copies.append({path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.xml")})
    (usual, picture), (_, same), (states, plain), (_, again) = found
    assert np.array_equal(usual, states), "the same physics"
    assert np.array_equal(picture, same)
    assert np.array_equal(plain, again)
    assert 0 < np.abs(picture - plain).mean() < 10
    assert copies[:2] == [{}, {}]
    assert copies[2] == copies[3], "the models are copied once"
    texts = [path.read_text() for path in copies[2]]
    assert sum(text.count("<quality ") for text in texts) == 2
    assert sum(text.count('<quality shadowsize="0" offsamples="0"/>') for text in texts) == 2


def test_models_without_shadows_are_those_of_the_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assets = tmp_path / "assets"
    scene, mesh = (assets / "mujoco/metaworld" / name for name in ("scene/a.xml", "b.stl"))
    scene.parent.mkdir(parents=True)
    with pytest.raises(UserError, match="there are no models of Meta-World with shadows in "):
        metaworld.models_without_shadows(str(assets))
    scene.write_text('<visual><quality shadowsize ="4096"/></visual>')
    mesh.write_bytes(b"1")
    first = Path(metaworld.models_without_shadows(str(assets)))
    mesh.write_bytes(b"2")
    second = Path(metaworld.models_without_shadows(str(assets)))
    assert [(place / "mujoco/metaworld/b.stl").read_bytes() for place in (first, second)] == [b"1", b"2"]
    (second / "mujoco/metaworld/b.stl").unlink()
    assert Path(metaworld.models_without_shadows(str(assets))) == second, "what was deleted is written again"
    assert (second / "mujoco/metaworld/b.stl").read_bytes() == b"2"
    assert sorted(path.name for path in (tmp_path / "cache/drqv2").iterdir()) == sorted([first.name, second.name])
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(UserError, match=r"models cannot be written: .*\nSet XDG_CACHE_HOME"):
        metaworld.models_without_shadows(str(assets))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shadows": "no"}, r"\+env.shadows='no': must be true or false"),
        ({"shadows": None}, r"\+env.shadows=None: must be true or false"),
        ({"render_camera_id": 6}, r"\+env.render_camera_id=6: must be 0 \(topview\), .* or -1 \(from behind"),
        ({"render_camera_id": "corner2"}, r"\+env.render_camera_id='corner2': must be 0"),
        ({"render_camera_id": 1.5}, r"\+env.render_camera_id=1.5: must be 0"),
    ],
)
def test_pictures_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make(**options)


def test_the_goal_can_be_hidden() -> None:
    env = make(partially_observable=True)
    assert env.reset().observation[-3:].tolist() == [0.0, 0.0, 0.0]
    env.close()


def test_what_is_drawn_is_a_part_beside_the_state() -> None:
    factory = libraries.factory(REACH, {})
    both = envs.make(REACH, 1, 1, 1, factory=factory, obs_type="pixels+state", render="rgb_array", image_size=32)
    state = make()
    seen = both.reset().observation
    assert {name: part.shape for name, part in seen.items()} == {"pixels": (3, 32, 32), "state": (39,)}
    assert seen["pixels"].std() > 0
    np.testing.assert_array_equal(seen["state"], state.reset().observation)
    both.close()
    state.close()


def test_an_episode_is_500_steps_and_ends_by_a_time_out() -> None:
    env = make()
    for seed in range(2):
        time_steps = played(env, 600, seed)
        assert len(time_steps) == 501
        assert [time_step.discount for time_step in time_steps] == [1.0] * 501
        assert {time_step.success for time_step in time_steps[1:]} <= {0.0, 1.0}
        assert time_steps[0].success is None
    env.close()


def test_who_reaches_the_goal_succeeds() -> None:
    env = make()
    time_step = env.reset()
    successes, rewards = [], []
    while not time_step.last():
        way = time_step.observation[-3:] - time_step.observation[:3]
        time_step = env.step(np.append(np.clip(10 * way, -1, 1), 0.0).astype(np.float32))
        successes.append(time_step.success)
        rewards.append(time_step.reward)
    assert successes[0] == 0.0
    assert successes[-1] == 1.0
    assert 9.0 < rewards[-1] <= 10.0, "rewards of version 2 go up to 10; those of version 1 into the thousands"
    env.close()


@pytest.mark.parametrize("name", TASK_GROUPS["mt10"])
def test_rewards_are_those_of_version_2(name: str) -> None:
    env = make(name)
    rewards = [time_step.reward for time_step in played(env, 100)[1:]]
    env.close()
    assert all(0.0 <= reward <= 10.0 for reward in rewards)
    assert len(set(rewards)) > 1


def test_the_same_seed_gives_the_same_episodes() -> None:
    runs = []
    for seed in (1, 1, 2):
        env = make(seed=seed)
        runs.append([time_step for _ in range(2) for time_step in played(env, 20)])
        env.close()
    seen = [np.stack([time_step.observation for time_step in one]) for one in runs]
    np.testing.assert_array_equal(seen[0], seen[1])
    assert [time_step.reward for time_step in runs[0]] == [time_step.reward for time_step in runs[1]]
    assert not np.array_equal(seen[0][:, -3:], seen[2][:, -3:])


def test_an_episode_is_restored_from_its_actions() -> None:
    env, again = make("metaworld:drawer-open-v3"), make("metaworld:drawer-open-v3")
    env.reset()
    seen = played(env, 15)[-1]
    restored = again.restore(env.state())
    np.testing.assert_array_equal(restored.observation, seen.observation)
    assert restored.reward == seen.reward
    for one in (env, again):
        one.close()


def test_mt10_is_the_ten_tasks_in_their_order() -> None:
    assert TASK_GROUPS["mt10"] == [
        f"metaworld:{name}-v3"
        for name in (
            "reach",
            "push",
            "pick-place",
            "door-open",
            "drawer-open",
            "drawer-close",
            "button-press-topdown",
            "peg-insert-side",
            "window-open",
            "window-close",
        )
    ]


def test_every_task_of_mt50_is_one_of_envpools() -> None:
    libraries.factory(REACH, {})
    make().close()  # loads OpenGL, and then EnvPool
    import envpool

    known = {name for name in envpool.list_all_envs() if name.startswith("MetaWorld/")}
    wanted = {ids.pool_name(name) for name in TASK_GROUPS["mt50"]}
    assert len(TASK_GROUPS["mt50"]) == len(wanted) == 50
    assert wanted <= known
    assert set(TASK_GROUPS["mt10"]) <= set(TASK_GROUPS["mt50"])
    assert {ids.env_id(ids.pool_name(name)) for name in TASK_GROUPS["mt50"]} == set(TASK_GROUPS["mt50"])


@pytest.mark.parametrize("name", ["reech-v3", "reach-v9", "nothing"])
def test_a_task_that_is_not_there(name: str) -> None:
    with pytest.raises(UserError, match=f"metaworld:{name}: metaworld has no such environment; "):
        make(f"metaworld:{name}")


@pytest.mark.slow
def test_preset_mt10_trains_on_all_ten(tmp_path: Path) -> None:
    overrides = "regime=multitask preset=mt10 num_seed_frames=500 agent.num_expl_steps=500 num_train_frames=520"
    more = f"eval_every_frames=520 num_eval_episodes=1 save_video=false console=off hydra.run.dir={tmp_path / 'run'}"
    launch(train.main, "cfgs", argv=[*overrides.split(), *more.split()])
    assert len(list((tmp_path / "run" / "buffer").glob("episode_*"))) == 10
    row = rows(tmp_path / "run", "eval")[-1]
    for name in TASK_GROUPS["mt10"]:
        assert row[f"success_{name.removeprefix('metaworld:')}"] in ("0.0", "1.0")
        assert 0 <= float(row[f"episode_reward_{name.removeprefix('metaworld:')}"]) <= 5000
