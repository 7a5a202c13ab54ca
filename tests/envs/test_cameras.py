"""A camera's pixels are those of dm_control's `physics.render`."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace
from typing import Any

import mujoco
import numpy as np
import pytest
from dm_control import suite
from dm_control.mujoco import engine

from drqv2.config.cfgs import tasks as names
from drqv2.envs import make
from drqv2.envs.cameras import PhysicsCamera, RenderCamera
from drqv2.envs.dm_control import load
from drqv2.errors import UserError

FAST = {"cartpole_balance", "humanoid_walk", "quadruped_walk", "reach_duplo"}
SIZE, VIDEO = 84, 256
DECOR, STATIC = mujoco.mjtCatBit.mjCAT_DECOR, mujoco.mjtCatBit.mjCAT_STATIC


def tasks(fast: set[str] = FAST) -> list[Any]:
    return [name if name in fast else pytest.param(name, marks=pytest.mark.slow) for name in names()]


class Pair:
    """One episode in two simulations: dm_control's own, and one seen through a camera."""

    def __init__(self, name: str, size: int = SIZE, fast: bool = False) -> None:
        (self.stock, self.number), (self.env, _) = load(name, 1), load(name, 1)
        self.camera = PhysicsCamera(self.env, size, self.number, fast, own=True)
        self.rng = np.random.default_rng(2)
        self.reset()

    def reset(self) -> None:
        self.stock.reset()
        self.time_step = self.env.reset()

    def step(self) -> None:
        spec = self.stock.action_spec()
        action = self.rng.uniform(spec.minimum, spec.maximum)
        self.stock.step(action)
        self.time_step = self.env.step(action)

    def difference(self, size: int | None = None) -> float:
        """Return the share of pixels that differ: of the image, or of a picture of another size."""
        ours = self.camera(self.time_step) if size is None else self.camera.render(size, size)
        return differ(ours, self.stock.physics.render(*ours.shape[:2], camera_id=self.number))

    def close(self) -> None:
        for env in (self.stock, self.env):
            free = getattr(env.physics, "free", None) if isinstance(env.physics, engine.Physics) else None
            env.close()
            if free and not isinstance(env.physics, weakref.ProxyType):
                free()


def differ(ours: np.ndarray, theirs: np.ndarray) -> float:
    assert ours.shape == theirs.shape
    assert ours.dtype == theirs.dtype == np.uint8
    return float((ours != theirs).any(-1).mean())


@pytest.mark.slow
@pytest.mark.parametrize("name", tasks())
def test_pixels_are_dm_controls(name):
    steps = 2 if name in FAST else 10
    pair = Pair(name)
    for episode in range(2):
        if episode:
            pair.reset()  # the composer makes a new physics
        for t in range(steps):
            pair.step()
            assert pair.difference() == 0
            if t in (1, steps - 1):
                assert pair.difference(VIDEO) == 0
    pair.close()


@pytest.mark.parametrize("name", tasks({"finger_turn_hard", "quadruped_walk"}))
def test_fast_differs_in_few_pixels(name):
    steps = 5 if name in FAST else 10
    pair, found = Pair(name, fast=True), []
    for _ in range(steps):
        pair.step()
        found.append(pair.difference())
    assert np.mean(found) <= 0.003
    pair.close()


def test_fast_has_less_shadow():
    pair = Pair("cup_catch", fast=True)
    assert pair.difference(VIDEO) > 0
    assert pair.env.physics.model.vis.quality.shadowsize == 768
    pair.close()


def test_free_camera_and_named_camera():
    env = suite.load("cheetah", "run")
    env.reset()
    for camera in (-1, "back"):
        eye = PhysicsCamera(env, 32, camera)
        assert differ(eye.render(48, 32), env.physics.render(48, 32, camera_id=camera)) == 0
    env.physics.free()


def test_two_environments_side_by_side():
    pairs = [Pair("cheetah_run", size=32), Pair("cup_catch", size=48)]
    for _ in range(2):
        for pair in pairs:
            pair.step()
            assert pair.difference() == 0
    for pair in pairs:
        pair.close()


def test_buffer_is_as_small_as_the_pictures():
    pair = Pair("cartpole_balance", size=32)
    pair.step()
    for size, buffer in ((None, 32), (64, 64), (48, 64), (640, 640), (None, 640)):
        pair.stock.physics.model.vis.global_.offheight = 640
        assert pair.difference(size) == 0
        context, vis = pair.env.physics.contexts.mujoco.ptr, pair.env.physics.model.vis.global_
        assert (context.offWidth, context.offHeight) == (vis.offwidth, vis.offheight) == (buffer, buffer)
    assert differ(pair.camera.render(24, 700), pair.camera.render(24, 700)) == 0
    assert (context.offWidth, context.offHeight) == (700, 640)
    pair.close()


def test_the_users_physics_draws_as_before():
    """Its buffer never shrinks, before OpenGL is opened and after, and grows where it is too small."""
    env = suite.load("cheetah", "run")
    env.reset()
    eye = PhysicsCamera(env, 32, 0)
    for _ in range(2):
        assert env.physics.render(480, 640).shape == (480, 640, 3)
        assert eye(None).shape == (32, 32, 3)
    assert eye.render(500, 500).std() > 1
    assert env.physics.render(500, 640).shape == (500, 640, 3)
    late = PhysicsCamera(env, 32, 0, fast=True)  # OpenGL is open
    assert differ(late(None), env.physics.render(32, 32, camera_id=0)) == 0
    env.physics.free()


def test_a_users_model_with_a_small_buffer():
    env = suite.load("cheetah", "run")
    env.physics.model.vis.global_.offwidth = env.physics.model.vis.global_.offheight = 16
    env.reset()
    assert PhysicsCamera(env, 32, 0)(None).std() > 1
    env.physics.free()


def test_who_holds_the_arrays():
    """The image's array is used again; pictures and observations belong to who asked for them."""
    pair = Pair("cheetah_run", size=32)
    image = pair.camera(pair.time_step)
    before = image.copy()
    picture = pair.camera.render(32, 32)
    pair.step()
    assert pair.camera(pair.time_step).base is image.base
    assert not np.array_equal(image, before)
    assert np.array_equal(picture, before)
    pair.close()

    env = make("cheetah_run", 2, 2, 1, image_size=32)
    first = env.reset().observation
    picture, kept = env.render(32, 32), first.copy()
    second = env.step(np.ones(6)).observation
    assert np.array_equal(first, kept)
    assert np.array_equal(picture.transpose(2, 0, 1), first[3:])
    assert np.array_equal(second[:3], first[3:])
    assert not np.array_equal(second[3:], first[3:])
    env.close()


@pytest.mark.slow
def test_a_model_that_was_replaced_is_freed():
    pair = Pair("reach_duplo", size=16)
    pair.camera(pair.time_step)
    old = weakref.ref(pair.env.physics.model)
    pair.reset()
    gc.collect()
    assert old() is None
    assert pair.difference() == 0
    assert pair.env.physics.contexts.mujoco.ptr.offWidth == 16
    pair.close()


def test_closed():
    env = make("cheetah_run", 1, 1, 1, image_size=16)
    env.reset()
    physics, gl = env.physics, env.physics.contexts.gl
    env.close()
    assert gl.terminated
    assert physics._contexts is None
    env.close()


@pytest.mark.parametrize(
    ("shape", "size", "rows", "columns"),
    [
        ((40, 60), (30, 30), (5, 25), (0, 30)),
        ((60, 20), (48, 48), (0, 48), (16, 32)),
        ((8, 8), (32, 32), (0, 32), (0, 32)),
    ],
)
def test_a_film_keeps_the_proportions_of_what_is_rendered(shape, size, rows, columns):
    """The agent's own image fills its square; the film's stands between black bars."""
    env = SimpleNamespace(render_mode="rgb_array", picture=lambda: np.full((*shape, 3), 200, np.uint8))
    camera = RenderCamera(env, 16)
    assert (camera(None) == 200).all()
    expected = np.zeros((*size, 3), np.uint8)
    expected[slice(*rows), slice(*columns)] = 200
    assert np.array_equal(camera.render(*size), expected)


def test_unknown_render():
    with pytest.raises(UserError, match="render='quick': must be one of exact, fast"):
        make("cheetah_run", 1, 1, 1, render="quick")


# Boxes that lean and are sunk in the floor: a pixel on their outline may be coloured by a point below the floor.
POSTS = "".join(
    f'<geom type="box" size=".05 .05 .2" pos="{x} {y} .17" euler="{a} {b} {c}"/>'
    for x, y, a, b, c in np.random.default_rng(0).uniform([-0.8, -0.8, -30, -30, 0], [0.8, 0.8, 30, 30, 90], (12, 5))
)
LIGHT = '<light pos="0 0 3" dir="0 0 -1"/>'
CAMERA = '<camera pos="0 -3 1.5" xyaxes="1 0 0 0 .4 1"/>'
FLOOR = '<geom name="floor" type="plane" size="3 3 .1" rgba=".5 .6 .7 1"/>'
SLACK = (
    '<site name="a" pos="-.5 0 1" rgba="1 0 0 .5"/><site name="b" pos=".5 0 1" rgba="1 0 0 .5"/></worldbody>'
    '<tendon><spatial range="0 4" width=".02"><site site="a"/><site site="b"/></spatial></tendon><worldbody>',
)
OVERHEAD = '<camera pos="0 0 4"/>'


def seen(size: int, *parts: str) -> tuple[float, list[Any]]:
    """Return the share of pixels of a world that differ from dm_control's, and the geoms drawn."""
    physics = engine.Physics.from_xml_string(f"<mujoco><worldbody>{''.join(parts)}</worldbody></mujoco>")
    stock = physics.copy()
    camera = PhysicsCamera(SimpleNamespace(physics=physics), size, 0, own=True)
    share = differ(camera(None), stock.render(size, size, camera_id=0))
    geoms = list(camera._scene._scene.geoms)
    physics.free()
    stock.free()
    return share, geoms


def test_small_shadow_of_a_floor():
    share, geoms = seen(VIDEO, FLOOR, LIGHT, CAMERA, POSTS)
    assert share == 0
    assert geoms[0].category == DECOR
    assert (len(geoms), geoms[-1].category, geoms[-1].rgba[3]) == (14, STATIC, 0)
    assert geoms[-1].size[:2].prod() < 6  # the floor's own: 9


def test_the_small_shadow_is_needed(monkeypatch):
    monkeypatch.setattr("drqv2.envs.scene._Floor._cast", lambda *args: None)
    assert seen(VIDEO, FLOOR, LIGHT, CAMERA, POSTS)[0] > 0


@pytest.mark.parametrize("parts", [(FLOOR, LIGHT, CAMERA), (FLOOR, CAMERA, POSTS)], ids=["empty", "no light"])
def test_a_floor_without_any_shadow(parts):
    share, geoms = seen(SIZE, *parts)
    assert share == 0
    assert geoms[0].category == DECOR


@pytest.mark.parametrize(
    ("what", "parts"),
    [
        ("light from the side", (FLOOR, '<light pos="3 0 1" dir="-1 0 -.3"/>', CAMERA)),
        ("camera that sees things all over it", (FLOOR.replace("3 3", ".9 .9"), LIGHT, OVERHEAD)),
        ("light below", (FLOOR, '<light pos="0 0 -1" dir="0 0 -1"/>', CAMERA)),
        ("camera without perspective", (FLOOR, LIGHT, CAMERA.replace("/>", ' projection="orthographic" fovy="2"/>'))),
        ("camera below", (FLOOR, LIGHT, '<camera pos="0 -3 -1" xyaxes="1 0 0 0 -.3 1"/>')),
        ("something below", (FLOOR, LIGHT, CAMERA, '<geom size=".2" pos="0 0 -1"/>')),
        ("a site below", (FLOOR, LIGHT, CAMERA, '<site size=".2" pos="0 0 -1" rgba="1 0 0 1"/>')),
        ("a slack tendon below", (FLOOR, LIGHT, CAMERA, *SLACK)),
        ("transparent", (FLOOR.replace('1"/>', '.5"/>'), LIGHT, CAMERA)),
        ("infinite", (FLOOR.replace("3 3", "0 0"), LIGHT, CAMERA)),
        ("tilted", (FLOOR.replace("/>", ' euler="5 0 0"/>'), LIGHT, CAMERA)),
        ("two levels", (FLOOR, '<geom type="plane" size=".5 .5 .1" pos="0 0 .2"/>', LIGHT, CAMERA)),
    ],
)
def test_other_floors_stay_as_they_are(what, parts):
    share, geoms = seen(SIZE, *parts, POSTS)
    assert share == 0
    assert DECOR not in [g.category for g in geoms if g.type == mujoco.mjtGeom.mjGEOM_PLANE]
    assert not any(g.rgba[3] == 0 for g in geoms)


def test_the_tasks_floors_cast_small_shadows():
    for name in ("acrobot_swingup", "reach_duplo"):
        pair = Pair(name)
        pair.camera(pair.time_step)
        planes = [g for g in pair.camera._scene._scene.geoms if g.type == mujoco.mjtGeom.mjGEOM_PLANE]
        assert planes[0].category == DECOR
        pair.close()
