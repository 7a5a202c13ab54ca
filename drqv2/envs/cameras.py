"""Where the pixels come from: a simulation's camera, the observation itself, or a gymnasium.Env's `render()`."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from dm_env import TimeStep

from drqv2.envs.images import Image
from drqv2.errors import UserError

if TYPE_CHECKING:
    from drqv2.envs.scene import Scene


class Camera(Protocol):
    """Gives the image of a time step, and pictures of the same moment in any size for a video.

    Attributes:
        shape: (H, W, C) of the image.
    """

    shape: tuple[int, int, int]

    def __call__(self, time_step: TimeStep) -> np.ndarray:
        """Return the image of `time_step`, the environment's current one, uint8 [H, W, C].

        The next call may overwrite the array.
        """

    def render(self, height: int, width: int) -> np.ndarray:
        """Return the current moment, uint8 [height, width, 3]."""


class PhysicsCamera:
    """A MuJoCo camera. Its pixels are those of dm_control's `physics.render`, to the last bit, unless `fast`.

    Args:
        env: has dm_control's `physics`.
        size: height and width of the image.
        camera: number or name.
        fast: draw shadows with less detail, see `make`.
        own: no other code renders this physics, so that its off-screen buffer may be as small as the pictures asked
            for, and its floor may cast a smaller shadow, see `scene.Scene`.

    Raises:
        UserError: there is no such camera.
    """

    def __init__(self, env: Any, size: int, camera: int | str, fast: bool = False, own: bool = False) -> None:
        check_camera(env.physics, camera)
        self.shape = (size, size, 3)
        self._env = env
        self._camera = camera
        self._fast = fast
        self._own = own
        self._pixels = np.empty(self.shape, np.uint8)
        self._model: Callable[[], Any] = lambda: None
        self._scene_now()  # before the first reset, at which some tasks open OpenGL themselves

    def __call__(self, time_step: TimeStep) -> np.ndarray:
        return self._scene_now().draw(self._env.physics, self._pixels)

    def render(self, height: int, width: int) -> np.ndarray:
        return self._scene_now().draw(self._env.physics, np.empty((height, width, 3), np.uint8))

    def _scene_now(self) -> Scene:
        # The model is looked up each time: dm_control's composer makes a new physics at every reset.
        model = self._env.physics.model
        if model is not self._model():
            from drqv2.envs.scene import Scene  # only here: it imports mujoco

            self._scene = Scene(self._env.physics, self._camera, self.shape[0], self._fast, self._own)
            self._model = weakref.ref(model)
        return self._scene


class ObservationCamera:
    """The image of the observation, resized by area averaging if necessary.

    Args:
        image: which one it is.
        size: height and width of the camera's image.
        film: the camera that films videos; None to enlarge the image.
    """

    def __init__(self, image: Image, size: int, film: Camera | None = None) -> None:
        self.shape = (size, size, image.shape[2])
        self._image, self._film = image, film
        self._seen = np.zeros(image.shape, np.uint8)

    def __call__(self, time_step: TimeStep) -> np.ndarray:
        self._seen = np.array(self._image.read(time_step.observation))
        return fit(self._seen, *self.shape[:2])

    def render(self, height: int, width: int) -> np.ndarray:
        return self._film.render(height, width) if self._film else within(_rgb(self._seen), height, width)


class RenderCamera:
    """What a gymnasium.Env's `render()` shows, resized by area averaging if necessary.

    Args:
        env: a `gymnasium.GymnasiumEnvironment`.
        size: height and width of the image.
        wanted: what needs it, for the message.

    Raises:
        UserError: it renders no pictures.
    """

    def __init__(self, env: Any, size: int, wanted: str = "no video: the observations are no images, and") -> None:
        if env.render_mode != "rgb_array":
            raise UserError(
                f"{wanted} render_mode is {env.render_mode!r} instead of 'rgb_array', which a gymnasium.Env lists in "
                "metadata['render_modes']"
            )
        self.shape = (size, size, 3)
        self._env = env

    def __call__(self, time_step: TimeStep) -> np.ndarray:
        return fit(_rgb(self._env.picture()), *self.shape[:2])

    def render(self, height: int, width: int) -> np.ndarray:
        return within(_rgb(self._env.picture()), height, width)


def check_camera(physics: Any, camera: int | str, task: str = "") -> int:
    """Return the number of a camera.

    Raises:
        UserError: a simulation of dm_control's has no such camera; the message lists them.
    """
    names = [physics.model.id2name(i, "camera") for i in range(physics.model.ncam)]
    if camera in names:
        return names.index(camera)
    if isinstance(camera, int) and -1 <= camera < len(names):
        return camera
    raise UserError(
        f"camera={camera!r}: must be -1 (free), 0 to {len(names) - 1} or one of {names}{task and f' of {task}'}"
    )


def fit(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """Return `image`, uint8 [H, W, C], resized to [height, width, C] by area averaging where its size differs."""
    if image.shape[:2] == (height, width):
        return image
    import cv2

    resized = [
        cv2.resize(np.ascontiguousarray(part), (width, height), interpolation=cv2.INTER_AREA)
        for part in np.split(image, range(4, image.shape[2], 4), axis=2)  # cv2 averages at most 4 channels at once
    ]
    return np.dstack(resized)  # cv2 drops a single channel


def within(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """Return a picture, uint8 [height, width, C], of an image in its own proportions, between black bars if needed."""
    scale = min(height / image.shape[0], width / image.shape[1])
    resized = fit(image, *(max(1, round(side * scale)) for side in image.shape[:2]))
    rows, columns = resized.shape[:2]
    if (rows, columns) == (height, width):
        return resized
    picture = np.zeros((height, width, image.shape[2]), np.uint8)
    top, left = (height - rows) // 2, (width - columns) // 2
    picture[top : top + rows, left : left + columns] = resized
    return picture


def _rgb(image: np.ndarray) -> np.ndarray:
    return image[..., :3] if image.shape[-1] >= 3 else np.repeat(image[..., :1], 3, axis=-1)
