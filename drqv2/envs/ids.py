"""Names of environments of other libraries: `gymnasium:CartPole-v1`, `envpool:Pong-v5`, `metaworld:reach-v3`."""

from __future__ import annotations

from drqv2.errors import UserError, nearest

LIBRARIES = {"gymnasium": "gym", "envpool": "envpool", "metaworld": "metaworld"}  # each with its extra
_METAWORLD = "MetaWorld/"  # how EnvPool's names of Meta-World's tasks begin


def split(id: str) -> tuple[str, str]:
    """Return the library and the name of an id.

    Raises:
        UserError: it names no library that is known, or a task of Meta-World by EnvPool's name.
    """
    library, _, name = id.partition(":")
    if not name or library not in LIBRARIES:
        allowed = " or ".join(f"{known}:NAME" for known in LIBRARIES)
        raise UserError(f"{id}: must be {allowed}, such as gymnasium:CartPole-v1")
    if library == "envpool" and name.startswith(_METAWORLD):
        raise UserError(f"{id}: its name here is {env_id(name)}")
    return library, name


def uses_envpool(env_id: str) -> bool:
    """Return whether EnvPool has the environment: Meta-World's tasks are EnvPool's, too."""
    return split(env_id)[0] in ("envpool", "metaworld")


def pool_name(env_id: str) -> str:
    """Return EnvPool's name of an id: metaworld:door-open-v3 is MetaWorld/DoorOpen-v3."""
    library, name = split(env_id)
    if library != "metaworld":
        return name
    *words, version = name.split("-")
    return f"{_METAWORLD}{''.join(word.capitalize() for word in words)}-{version}"


def env_id(pool_name: str) -> str:
    """Return the id of an EnvPool name, as it is typed."""
    if not pool_name.startswith(_METAWORLD):
        return f"envpool:{pool_name}"
    name = pool_name.removeprefix(_METAWORLD)
    return "metaworld:" + "".join(f"-{c.lower()}" if c.isupper() else c for c in name).lstrip("-")


def unknown(wanted: str, names: list[str]) -> UserError:
    """Return the error for a name that a library does not have.

    Args:
        wanted: the id.
        names: all ids of that library, or the names in them.
    """
    library, name = split(wanted)
    names = [each.removeprefix(f"{library}:") for each in names]
    if not names:
        return UserError(f"{wanted}: the EnvPool installed here has no Meta-World; run pip install -e '.[metaworld]'")
    if library == "gymnasium" and name.startswith("ALE/"):
        return UserError(
            f"{wanted}: it comes with the package ale-py: pip install ale-py, then "
            f"gymnasium:ale_py:{name}\nEnvPool has Atari's games, too: envpool:{name.removeprefix('ALE/')}"
        )
    near = nearest(name, names)
    hint = f"nearest: {', '.join(near)}" if near else f"it has {len(names):,}, such as {', '.join(sorted(names)[:3])}"
    return UserError(f"{wanted}: {library} has no such environment; {hint}")
