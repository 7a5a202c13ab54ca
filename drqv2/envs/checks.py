"""What an environment returns is compared with what it declared before anything else sees it."""

from __future__ import annotations

import inspect
import math
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import dm_env
import numpy as np
from dm_env import TimeStep

from drqv2.envs.images import NUMERIC, described, is_image, is_numeric, is_unit, named
from drqv2.envs.notices import notice
from drqv2.envs.wrappers import Wrapper
from drqv2.errors import EnvError, EnvNotFiniteError, UserError
from drqv2.system.signals import StoppedEarly

LARGEST = float(np.finfo(np.float32).max)  # of numbers: observations and rewards are stored and learnt from as float32
ROUNDING = 1e-5  # by which float images may leave [0, 1]
FAULTS = (Exception, SystemExit)  # what an environment's code may raise; SystemExit would end the run without a word
_PROJECT = Path(__file__).resolve().parents[1]
_LIBRARIES = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")}


class _Part(NamedTuple):
    """An array of the observation, as it was declared."""

    key: str | None
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    is_float: bool
    is_unit_image: bool

    @property
    def name(self) -> str:
        return named(self.key)

    @property
    def declared(self) -> str:
        return f"declared {self.dtype} {list(self.shape)}"


class CheckedEnvironment(Wrapper):
    """Passes on time steps that are what the environment declared; stops at the first that is not.

    Of each time step, shapes and dtypes of the observation's arrays are compared with the spec, floats must be finite,
    reward and discount numbers. A number in an array of one element is taken as the number, integers of another dtype
    are taken where they fit, and floats of another size are converted. Errors that the environment raises are explained
    by the last line of its own code.

    Args:
        env: the environment.
        name: of the environment, for messages.

    Attributes:
        steps: environment steps (frames) of the current episode.
        episode: which one that is, in words.

    Raises:
        EnvError: the observation spec is neither an array's nor a dict of arrays'. From `reset` and `step`: a time
            step is not what was declared, or the environment raised an error.
        EnvNotFiniteError: from `reset` and `step`: an observation, a reward or a discount is NaN or infinite.
    """

    def __init__(self, env: dm_env.Environment, name: str) -> None:
        super().__init__(env)
        self.name, self.steps, self.episode = name, 0, "an episode"
        spec = declared_spec(env, name)
        self._is_dict = isinstance(spec, Mapping)
        parts = spec.items() if self._is_dict else [(None, spec)]
        self._keys = {key for key, _ in parts}
        self._parts = [_declared(key, part) for key, part in parts if is_numeric(part)]

    def reset(self) -> TimeStep:
        """Start an episode; return its first time step."""
        self.steps = 0
        try:
            time_step = self._env.reset()
        except FAULTS as error:
            raise self._explained(error) from error
        return self._checked(time_step, first=True)

    def step(self, action: Any) -> TimeStep:
        """Take a step and return its time step: reward and discount are floats, arrays have the declared dtype."""
        self.steps += 1
        try:
            time_step = self._env.step(action)
        except FAULTS as error:
            raise self._explained(error) from error
        return self._checked(time_step, first=False)

    @property
    def success(self) -> float | None:
        """Whether the last step succeeded, 0.0 to 1.0; None where the environment does not report it."""
        success: Any = getattr(self._env, "success", None)
        if success is None or (type(success) is float and math.isfinite(success)):
            return success
        number = as_number(success)
        if number is None or not math.isfinite(number):
            kind = type(success).__name__
            notice(f"{self.name}: success is of type {kind}, not a finite number or a flag: it is ignored")
            return None
        return number

    def _explained(self, error: BaseException) -> EnvError:
        if isinstance(error, UserError):  # an adapter's: its message lacks the place
            return EnvError(f"{self._where()}: {error}")
        return explain(error, self._where())

    def _where(self) -> str:
        return f"{self.name}, {f'step {self.steps}' if self.steps else 'reset'} of {self.episode}"

    def _checked(self, time_step: Any, first: bool) -> TimeStep:
        try:
            kind, reward, discount = time_step.step_type, time_step.reward, time_step.discount
            observation = time_step.observation
        except AttributeError:
            raise self._refused(f"returned {shown(time_step)}: must be a dm_env.TimeStep") from None
        if not isinstance(kind, dm_env.StepType):
            raise self._refused(f"returned a time step of type {kind!r:.40}: must be a dm_env.StepType")
        if (kind == dm_env.StepType.FIRST) != first:
            must = "must be the FIRST one of an episode" if first else "an episode begins with reset() alone"
            raise self._refused(f"returned a time step of type {kind!s:.40}: {must}")
        if type(reward) is not float or not abs(reward) <= LARGEST:
            reward = self._number(reward, "reward", none_is=0.0 if first else None)
        if type(discount) is not float or not 0.0 <= discount <= 1.0:
            discount = self._number(discount, "discount", none_is=1.0)
            if not 0.0 <= discount <= 1.0:
                raise self._refused(f"the discount is {discount}: must be between 0 and 1")
        if first and (reward != 0.0 or discount != 1.0):
            raise self._refused(f"the first time step has reward {reward} and discount {discount}: must be None")
        return TimeStep(kind, reward, discount, self._observed(observation))

    def _number(self, value: Any, name: str, none_is: float | None) -> float:
        if value is None and none_is is not None:
            return none_is
        number = as_number(value)
        if number is None:
            raise self._refused(f"the {name} is {shown(value)}: must be a number")
        if not abs(number) <= LARGEST:
            raise EnvNotFiniteError(f"{self._where()}: the {name} is {number}{_too_large(number)}")
        return number

    def _observed(self, observation: Any) -> Any:
        if not self._is_dict:
            return self._array(observation, self._parts[0])
        if not isinstance(observation, Mapping) or observation.keys() != self._keys:
            found = f"a dict of {_listed(observation)}" if isinstance(observation, Mapping) else shown(observation)
            raise self._refused(f"the observation is {found}: declared a dict of {_listed(self._keys)}")
        return {part.key: self._array(observation[part.key], part) for part in self._parts}

    def _array(self, value: Any, part: _Part) -> Any:
        if type(value) is not np.ndarray or value.shape != part.shape or value.dtype != part.dtype:
            value = self._converted(value, part)
        if part.is_float:
            require_held(value, part.name, self._where, part.is_unit_image)
        return value

    def _converted(self, value: Any, part: _Part) -> np.ndarray:
        """Return an array that is not of the declared type in that type, if nothing is lost by it."""
        try:
            array = np.asarray(value)
        except FAULTS:  # lists of different lengths, a tensor on a GPU or with a gradient
            raise self._refused(f"{part.name} is {shown(value)}, which numpy cannot read: {part.declared}") from None
        if array.shape != part.shape or array.dtype.kind not in NUMERIC:
            raise self._refused(f"{part.name} is {shown(value)}: {part.declared}")
        if part.is_float or np.can_cast(array.dtype, part.dtype, "safe"):
            return array.astype(part.dtype, copy=False)
        limits = np.iinfo(part.dtype) if part.dtype.kind in "iu" else None
        if limits is None or array.dtype.kind == "f":
            raise self._refused(f"{part.name} is {shown(value)}: {part.declared}")
        if array.size and (array.min() < limits.min or array.max() > limits.max):
            raise self._refused(f"{part.name} has values from {array.min()} to {array.max()}: {part.declared}")
        return array.astype(part.dtype)

    def _refused(self, what: str) -> EnvError:
        return EnvError(f"{self._where()}: {what}")


def declared_spec(env: Any, name: str) -> Any:
    """Return the spec of an environment's observation: of an array, or a dict of them; `name` is the environment's.

    Raises:
        EnvError: it is something else.
    """
    with explained(f"{name}: observation_spec()"):
        spec = env.observation_spec()
    parts = spec.values() if isinstance(spec, Mapping) else [spec]
    if spec is None:
        raise UserError(f"{name}: observation_spec() returned None: must be a spec, or a dict of specs")
    if not all(hasattr(part, "shape") and hasattr(part, "dtype") for part in parts):
        raise EnvError(f"{name}: its observations are {described(spec)}: must be an array or a dict of arrays")
    return spec


def require_held(values: np.ndarray, what: str, where: Callable[[], str], is_unit_image: bool) -> None:
    """Check the floats in one environment's observation.

    Args:
        values: the floats.
        what: which array of the observation they are, for the message.
        where: tells which environment they come from.
        is_unit_image: whether they are an image, to be from 0 to 1.

    Raises:
        EnvNotFiniteError: a number is NaN, infinite, or larger than float32 holds.
        EnvError: those of an image leave [0, 1].
    """
    if not (held := np.abs(values) <= LARGEST).all():
        place = tuple(int(i) for i in np.argwhere(~held)[0])
        at = f" at {list(place)}" if place else ""
        number = values[place]
        raise EnvNotFiniteError(f"{where()}: {what} is {number}{at}{_too_large(number)}")
    if is_unit_image and not is_within_unit(values):
        raise EnvError(f"{where()}: {what} has values from {values.min()} to {values.max()}: declared 0 to 1")


def is_within_unit(values: np.ndarray) -> bool:
    """Return whether the floats of images are from 0 to 1, but for rounding; False if one is NaN."""
    return bool(values.min() >= -ROUNDING and values.max() <= 1 + ROUNDING)


def _too_large(number: Any) -> str:
    """Say why a number is refused, unless that is obvious."""
    return f", more than float32 holds ({LARGEST:.4g})" if math.isfinite(number) else ""


def _declared(key: str | None, spec: Any) -> _Part:
    dtype = np.dtype(spec.dtype)
    is_float = bool(np.issubdtype(dtype, np.floating))
    return _Part(key, tuple(spec.shape), dtype, is_float, is_float and is_image(spec) and is_unit(spec))


def as_number(value: Any) -> float | None:
    """Return a number, a flag, or the only element of an array of them, as a float; None for anything else."""
    if isinstance(value, list | tuple) and len(value) == 1:
        return as_number(value[0])
    if hasattr(value, "item") and math.prod(getattr(value, "shape", (0,))) == 1:  # numpy's or a tensor
        value = value.item()
    if not isinstance(value, int | float | np.floating):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf


def shown(value: Any) -> str:
    """Return what a value is, in words: of arrays the dtype and shape."""
    shape = getattr(value, "shape", None)
    if shape is not None and hasattr(value, "dtype"):
        return f"{value.dtype} {list(shape)}" if math.prod(shape) != 1 else f"{value!r:.60}"
    if isinstance(value, list | tuple):
        return f"a {type(value).__name__} of {len(value)} {'value' if len(value) == 1 else 'values'}"
    return f"{type(value).__name__} {value!r:.60}" if value is not None else "None"


def _listed(keys: Any) -> str:
    return ", ".join(sorted(map(str, keys))) or "nothing"


def offered_arguments(factory: Callable[..., Any], offered: Mapping[str, Any]) -> dict[str, Any]:
    """Return those arguments that a factory's signature names and that are not bound yet."""
    bound = getattr(factory, "keywords", {})  # functools.partial's
    return {key: offered[key] for key in inspect.signature(factory).parameters if key in offered and key not in bound}


def name_of_factory(factory: Callable[..., Any]) -> str:
    """Return the name of a function or class, for messages."""
    return getattr(getattr(factory, "func", factory), "__qualname__", None) or repr(factory)


@contextmanager
def explained(where: str) -> Iterator[None]:
    """Context of calls of an environment's code.

    Raises:
        EnvError: the code raised an error: names it and the last line of the user's own code.
    """
    try:
        yield
    except UserError:
        raise
    except FAULTS as error:
        raise explain(error, where) from error


def explain(error: BaseException, where: str) -> EnvError:
    """Return what to tell the user about an error that an environment's code has raised.

    Args:
        error: what was raised.
        where: the environment, and what it was doing.
    """
    if isinstance(error, StoppedEarly):
        raise error
    frames = traceback.extract_tb(error.__traceback__)
    own = own_frames(error) or frames
    first_line, *_ = str(error).strip().splitlines() or [""]
    told = f"{where} raised {type(error).__name__}: {first_line[:200]}"
    last = own[-1]
    line = f": {last.line}" if last.line else ""
    return EnvError(f"{told}\n{last.filename}, line {last.lineno}, in {last.name}{line}")


def own_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """Return the frames of an error that are the user's own code: neither of a library nor of this project."""
    return [frame for frame in traceback.extract_tb(error.__traceback__) if _is_own(frame.filename)]


def _is_own(filename: str) -> bool:
    if filename.startswith("<"):
        return False
    path = Path(filename).resolve()
    return not any(path.is_relative_to(folder) for folder in (_PROJECT, *_LIBRARIES))
