"""A simulation's camera whose scene stays from frame to frame, and a floor that costs less to draw.

The pixels are those of dm_control's `physics.render`, which makes a camera and a scene on each call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mujoco
import numpy as np
from dm_control.mujoco import wrapper

_FAST = 3 / 8  # of the shadow map's width and height
_OPAQUE = 0.995  # above this, MuJoCo draws shadows on a thing
_MARKS = (mujoco.mjtObj.mjOBJ_SITE, mujoco.mjtObj.mjOBJ_TENDON)
_LEVEL = np.eye(3).ravel()
_NEAR = 0.1  # of the camera's distance: 8 pixels in an image of 84 x 84 with a field of view of 45 degrees


class Scene:
    """What one camera of one model sees.

    Args:
        physics: dm_control's.
        camera: number or name.
        size: height and width of the pictures most often drawn.
        fast: make the shadow map smaller. Without effect once the physics has opened OpenGL.
        own: nobody else draws with this physics: its off-screen buffer is made for `size`, and grows with larger
            pictures; its floor may cast a smaller shadow, see `_Floor`.
    """

    def __init__(self, physics: Any, camera: int | str, size: int, fast: bool, own: bool) -> None:
        model = physics.model
        if own:
            model.vis.global_.offwidth = model.vis.global_.offheight = size
        if fast:
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
        self._floor = _find_floor(physics) if own else None

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
            self._floor.confine_shadow(model.ptr, data.ptr, self._scene)
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
    """A level floor that casts a shadow only around what is near it.

    With software OpenGL, a wide plane in the shadow map takes a good part of the whole image's time. Its shadow darkens
    what lies below it, and a camera above sees that in few pixels: where the outline of something that touches the
    floor runs through a pixel, and the pixel's centre, which decides about the shadow, belongs to a point below the
    floor. So the plane itself is taken for decoration, which `mjr_render` leaves out of the shadow map and otherwise
    treats like all else, and an invisible plane, as wide as what is near the floor, casts a shadow in its place.

    Args:
        model: MuJoCo's, without flexes and skins.
        geom: number of the plane: level and finite (all planes are static).
    """

    def __init__(self, model: Any, geom: int) -> None:
        self._geom = geom
        shown = np.asarray(wrapper.MjvOption().geomgroup)[model.geom_group] != 0
        (self._others,) = np.nonzero((model.geom_type != mujoco.mjtGeom.mjGEOM_PLANE) & shown)
        self._middle, self._half = np.split(model.geom_aabb[self._others], 2, axis=1)  # [N, 3] in the geoms' frames

    def confine_shadow(self, model: Any, data: Any, scene: Any) -> None:
        """Have a smaller plane cast the floor's shadow in an updated scene, if that changes no pixel."""
        floor, size, eye = data.geom_xpos[self._geom], model.geom_size[self._geom, :2], scene.camera[0].pos
        # Above the floor is what it hides from the camera; light from the side throws shadows far.
        if eye[2] <= floor[2] or (data.light_xpos[:, 2] <= floor[2]).any() or (data.light_xdir[:, 2] > -0.7).any():
            return
        low, high = self._bounds(data, scene)  # [N, 3] each
        near = _NEAR * np.linalg.norm(eye - (low + high).mean(0) / 2)
        plane = next((g for g in scene.geoms if g.objid == self._geom and g.objtype == mujoco.mjtObj.mjOBJ_GEOM), None)
        if plane is None or plane.rgba[3] < _OPAQUE or (low[:, 2] < floor[2] - near).any():
            return
        plane.category = mujoco.mjtCatBit.mjCAT_DECOR
        close = low[:, 2] < floor[2] + near
        if close.any():
            start = np.maximum(low[close, :2].min(0) - near, floor[:2] - size)
            stop = np.minimum(high[close, :2].max(0) + near, floor[:2] + size)
            if (start < stop).all():
                self._cast(scene, (*(start + stop) / 2, floor[2]), (*(stop - start) / 2, 1.0))

    def _bounds(self, data: Any, scene: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return the corners of boxes along the axes around all on which a shadow is seen, planes apart."""
        axes = data.geom_xmat[self._others].reshape(-1, 3, 3)
        middle = data.geom_xpos[self._others] + np.einsum("nij,nj->ni", axes, self._middle)
        half = np.einsum("nij,nj->ni", np.abs(axes), self._half)
        marks = [g for g in scene.geoms if g.objtype in _MARKS and g.rgba[3] >= _OPAQUE]
        at = np.array([g.pos for g in marks]).reshape(-1, 3)
        reach = np.array([np.linalg.norm(g.size) for g in marks]).reshape(-1, 1)
        return np.concatenate([middle - half, at - reach]), np.concatenate([middle + half, at + reach])

    @staticmethod
    def _cast(scene: Any, at: Sequence[float], size: Sequence[float]) -> None:
        """Add an invisible plane, which casts a shadow all the same."""
        scene.ngeom += 1
        plane = scene.geoms[-1]
        mujoco.mjv_initGeom(plane, mujoco.mjtGeom.mjGEOM_PLANE, size, at, _LEVEL, np.zeros(4, np.float32))
        plane.category = mujoco.mjtCatBit.mjCAT_STATIC


def _find_floor(physics: Any) -> _Floor | None:
    """Return the only level plane, if it is fit for `_Floor`."""
    model, level = physics.model.ptr, (physics.data.ptr.geom_xmat == _LEVEL).all(1)
    (found,) = np.nonzero(level & (model.geom_type == mujoco.mjtGeom.mjGEOM_PLANE))
    if len(found) != 1 or model.nflex or model.nskin:
        return None
    finite = (model.geom_size[found[0], :2] > 0).all()
    return _Floor(model, int(found[0])) if finite else None
