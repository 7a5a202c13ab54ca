"""A simulation's camera whose scene stays from frame to frame, and a floor that costs less to draw.

The pixels are those of dm_control's `physics.render`, which makes a camera and a scene on each call.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import mujoco
import numpy as np
from dm_control.mujoco import wrapper

_FAST = 3 / 8  # of the shadow map's width and height
_OPAQUE = 0.995  # above this, MuJoCo draws shadows on a thing
_LEVEL = np.eye(3).ravel()
_faster: weakref.WeakSet[Any] = weakref.WeakSet()  # models with a smaller shadow map: several cameras may see one
_PLANE, _GEOM = mujoco.mjtGeom.mjGEOM_PLANE, mujoco.mjtObj.mjOBJ_GEOM


class Scene:
    """What one camera of one model sees.

    Args:
        physics: dm_control's.
        camera: number or name.
        size: height and width of the pictures most often drawn.
        fast: make the shadow map smaller, and have the floor cast no shadow at all if `own`. The map's size is without
            effect once the physics has opened OpenGL.
        own: no other code renders this physics: its off-screen buffer is made for `size`, and grows with larger
            pictures; its floor may cast a smaller shadow, see `_Floor`.
    """

    def __init__(self, physics: Any, camera: int | str, size: int, fast: bool, own: bool) -> None:
        model = physics.model
        if own:
            model.vis.global_.offwidth = model.vis.global_.offheight = size
        if fast and model not in _faster:
            _faster.add(model)
            model.vis.quality.shadowsize = int(_FAST * model.vis.quality.shadowsize)
        number = model.name2id(camera, "camera") if isinstance(camera, str) else camera
        self._scene = wrapper.MjvScene(model)
        self._option = wrapper.MjvOption()
        self._perturb = wrapper.MjvPerturb()
        self._camera = wrapper.MjvCamera()
        if number == -1:
            mujoco.mjv_defaultFreeCamera(model.ptr, self._camera)
        else:
            self._camera.type, self._camera.fixedcamid = mujoco.mjtCamera.mjCAMERA_FIXED, number
        self._floor = _find_floor(physics, exact=not fast) if own else None

    def draw(self, physics: Any, out: np.ndarray) -> np.ndarray:
        """Draw into `out`, uint8 [H, W, 3], whose rows come from the bottom up, and return it the right way up."""
        height, width, _ = out.shape
        model, data, contexts = physics.model, physics.data, physics.contexts
        mujoco.mjv_updateScene(
            model.ptr,
            data.ptr,
            self._option,
            self._perturb,
            self._camera,
            mujoco.mjtCatBit.mjCAT_ALL.value,
            self._scene,
        )
        if self._floor is not None:
            self._floor.confine_shadow(model.ptr, data.ptr, self._scene, height)
        rect, context = mujoco.MjrRect(0, 0, width, height), contexts.mujoco.ptr

        def render() -> None:
            if width > context.offWidth or height > context.offHeight:
                self._grow(model.vis.global_, context, width, height)
            mujoco.mjr_render(rect, self._scene, context)
            mujoco.mjr_readPixels(out, None, rect, context)

        with contexts.gl.make_current() as gl:  # OpenGL may have a thread of its own
            gl.call(render)
        return out[::-1]

    @staticmethod
    def _grow(buffer: Any, context: Any, width: int, height: int) -> None:
        buffer.offwidth, buffer.offheight = max(width, context.offWidth), max(height, context.offHeight)
        mujoco.mjr_resizeOffscreen(buffer.offwidth, buffer.offheight, context)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, context)


class _Floor:
    """A level floor that casts a shadow only where something could be seen in it.

    With software OpenGL, a wide plane in the shadow map takes a good part of an image's time. Its shadow darkens what
    lies below it, and a camera above sees little of that: only pixels on an outline, as the point that decides about
    the shadow is where the ray through the pixel's centre meets the surface, or the surface's extension: maybe below
    the floor. So the plane itself is taken for decoration, which `mjr_render` leaves out of the shadow map and
    otherwise treats like all else, and an invisible plane casts a shadow in its place. That one is as wide as it takes
    for the points below the floor on all rays from the camera to anything but the floor.

    Args:
        model: MuJoCo's, without flexes and skins.
        geom: number of the plane: level and finite (all planes are static).
        exact: whether any shadow is cast in its place.
    """

    def __init__(self, model: Any, geom: int, exact: bool) -> None:
        self._geom = geom
        self._exact = exact
        shown = np.asarray(wrapper.MjvOption().geomgroup)[model.geom_group] != 0
        (self._solids,) = np.nonzero((model.geom_type != _PLANE) & shown)
        self._middle, self._half = np.split(model.geom_aabb[self._solids], 2, axis=1)  # [N, 3] in the geoms' frames
        (self._lights,) = np.nonzero(model.light_castshadow)
        self._directional = model.light_type[self._lights] == mujoco.mjtLightType.mjLIGHT_DIRECTIONAL

    def confine_shadow(self, model: Any, data: Any, scene: Any, height: int) -> None:
        """Have a smaller plane cast the floor's shadow in an updated scene, for an image of this height."""
        floor, size, camera = data.geom_xpos[self._geom], model.geom_size[self._geom, :2], scene.camera[0]
        lights, down = data.light_xpos[self._lights], data.light_xdir[self._lights, 2]
        lowest = lights[:, 2].min(initial=camera.pos[2])
        if camera.orthographic or lowest <= floor[2] or (down > -0.9999).any():
            return
        plane = next((g for g in scene.geoms if g.type == _PLANE and g.objid == self._geom), None)
        if plane is None or plane.rgba[3] < _OPAQUE:
            return
        start, stop = self._seen_below(floor, size, data, scene, height) if self._exact else (floor[:2], floor[:2])
        start, stop = np.maximum(start, floor[:2] - size), np.minimum(stop, floor[:2] + size)
        if (stop - start >= 2 * size).all():
            return  # all of it is needed
        plane.category = mujoco.mjtCatBit.mjCAT_DECOR
        if (start < stop).all():
            self._cast(scene, (*(start + stop) / 2, floor[2]), (*(stop - start) / 2, 1.0))

    def _seen_below(
        self, floor: np.ndarray, size: np.ndarray, data: Any, scene: Any, height: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the corners, [2] each, of the part of the floor whose shadow could be seen."""
        lights, camera = data.light_xpos[self._lights], scene.camera[0]
        eye, pixel = camera.pos.astype(float), 2 * camera.frustum_top / camera.frustum_near / height
        low, high = self._bounds(data, scene)  # [N, 3]
        distance = np.linalg.norm(np.maximum(high - eye, eye - low), axis=1).max(initial=0)
        margin = max(1.5 * pixel, 0.01) * distance
        if (low[:, 2] < floor[2] - margin).any():  # the floor's own edges may be seen on it
            return floor[:2] - size, floor[:2] + size
        low, high = low - margin, high + margin
        low, high = low[low[:, 2] < eye[2]], high[low[:, 2] < eye[2]]  # rays that rise never meet the floor
        if not len(low):
            return eye[:2], eye[:2]
        # Where rays through the corners of the boxes meet the floor, seen from its point below the camera.
        depth = eye[2] - np.stack([low[:, 2], np.minimum(high[:, 2], eye[2] - 1e-6)])  # [2, N]
        scale = ((eye[2] - floor[2]) / depth)[..., None]  # [2, N, 1]
        near, far = ((low - eye)[:, :2] * scale).min((0, 1)), ((high - eye)[:, :2] * scale).max((0, 1))
        # As a point follows its ray down from there, its shadow comes from a point of the floor that moves straight
        # away from the camera, towards the one that a parallel ray from the light meets.
        reach = np.where(self._directional, 1e6, (lights[:, 2] - floor[2]) / (eye[2] - floor[2]))[:, None]  # [L, 1]
        foot = np.where(self._directional[:, None], eye[:2], lights[:, :2])  # [L, 2]
        start = np.concatenate([(eye[:2] + near)[None], foot + reach * near]).min(0) - margin
        stop = np.concatenate([(eye[:2] + far)[None], foot + reach * far]).max(0) + margin
        return start, stop

    def _bounds(self, data: Any, scene: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return the corners of boxes along the axes around all things but the floor on which shadows are seen."""
        axes = data.geom_xmat[self._solids].reshape(-1, 3, 3)
        middle = data.geom_xpos[self._solids] + np.einsum("nij,nj->ni", axes, self._middle)
        half = np.einsum("nij,nj->ni", np.abs(axes), self._half)
        others = [g for g in scene.geoms if g.objtype != _GEOM or (g.type == _PLANE and g.objid != self._geom)]
        others = [g for g in others if g.rgba[3] >= _OPAQUE]  # sites, tendons, walls
        at = np.array([g.pos for g in others]).reshape(-1, 3)
        reach = np.array([np.linalg.norm(g.size) for g in others]).reshape(-1, 1)
        return np.concatenate([middle - half, at - reach]), np.concatenate([middle + half, at + reach])

    @staticmethod
    def _cast(scene: Any, at: Sequence[float], size: Sequence[float]) -> None:
        """Add an invisible plane that still casts a shadow."""
        scene.ngeom += 1
        plane = scene.geoms[-1]
        mujoco.mjv_initGeom(plane, _PLANE, size, at, _LEVEL, np.zeros(4, np.float32))
        plane.category = mujoco.mjtCatBit.mjCAT_STATIC


def _find_floor(physics: Any, exact: bool) -> _Floor | None:
    """Return the only level plane, if it is fit for `_Floor`."""
    model = physics.model.ptr
    (planes,) = np.nonzero(model.geom_type == _PLANE)
    level = planes[(physics.data.ptr.geom_xmat[planes] == _LEVEL).all(1)]
    if len(level) != 1 or (model.geom_size[planes, :2] <= 0).any() or model.nflex or model.nskin:
        return None
    return _Floor(model, int(level[0]), exact)
