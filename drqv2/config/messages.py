"""Errors of Hydra and OmegaConf in one or two lines: the key, the value, what is allowed, the nearest valid names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from hydra.errors import MissingConfigException, OverrideParseException
from omegaconf.errors import OmegaConfBaseException

from drqv2.config.cfgs import CHOSEN
from drqv2.config.dm_control import unknown_task
from drqv2.config.formatting import did_you_mean, synonym, unknown
from drqv2.config.keys import Key, not_set
from drqv2.config.schema import FIRST, REGIMES, every_key


def explain(error: Exception, regime: str = FIRST) -> str:
    """Explain an error of Hydra's or OmegaConf's in one or two lines, which may suggest keys of `regime`."""
    known = REGIMES[regime].every_key if regime in REGIMES else every_key()
    if isinstance(error, MissingConfigException) and "/" in (error.missing_cfg_file or ""):
        group, _, option = str(error.missing_cfg_file).rpartition("/")
        if group == "task":
            return unknown_task(f"task={option}", option)
        return unknown(group, option, error.options or [])
    if isinstance(error, OverrideParseException):
        return _unreadable(error.override, known)
    if isinstance(error, OmegaConfBaseException):
        return _omegaconf(error, known)
    return _composition(error, [*known, *CHOSEN], REGIMES[regime].moved if regime in REGIMES else {})


def _unreadable(override: str, known: Mapping[str, Key]) -> str:
    name, equals, _ = override.partition("=")
    key = known.get(name.lstrip("+~"))
    if key is None:
        return f"{override}: cannot be read; write key=value{did_you_mean(name, known)}"
    if not equals:
        return f"{override}: a value is missing; write {name}=VALUE"
    quotes = f"\nPut quotes around special characters: \"{name}='...'\"" if key.kind.is_text else ""
    return f"{override}: cannot be read; must be {key.allowed}{quotes}"


def _omegaconf(error: OmegaConfBaseException, known: Iterable[str]) -> str:
    reason = _first_line(error)
    if missing := re.search(r"[Mm]issing mandatory value: (\S+)", reason):
        return not_set(missing[1])
    quoted = re.search(r"'([^']+)'", reason)
    where = f"{error.full_key}: " if error.full_key else ""
    if quoted and quoted[1].startswith("agent.obs_shape["):
        advice = "observations are dicts; refer to the shape of a part, as in ${agent.obs_shape.NAME[0]}"
        return f"{where}there is no {quoted[1]}: {advice}"
    return where + reason + (did_you_mean(quoted[1], known) if quoted else "")


# Hydra's messages, and what to say instead; {near} are the names most like the first group.
_ADVICE = (
    (
        r"To append to your config use \+(agent\.[^=]+)=(.*)",
        "{0}={1}: there is no such key{near} (see --help)\nAdd an argument that your own agent takes with +{0}={1}",
    ),
    (
        r"To append to your (?:config|default list) use \+([^=]+)=(.*)",
        "{0}={1}: there is no such key{near} (see --help)",
    ),
    (r"Could not delete from config. '(.+)' does not exist", "~{0}: there is no such key{near}"),
    (r"An item is already at '(.+)'", "+{0}: this key exists; write {0}=VALUE, without the plus"),
    (r"Multiple values for (\S+)\.", "+{0}: there is a default; write {0}=NAME, without the plus"),
    (r"Ambiguous value for argument '(.+)'", "{0}: one value is expected; use -m for several runs, or a list: [a,b]"),
    (r"Sweep parameters '(.+)' requires", "{0}: several runs need -m"),
    (r"Config group override must be a string", "choose one task and one preset by name: task=cheetah_run preset=cpu"),
    (r"does not support sweep type", "interval(...) needs hydra/sweeper=search; or list the values: seed=1,2,3"),
)


# Keys of programs that train several tasks, such as mtrl, and what they are here.
_ELSEWHERE = {
    "delete_replay_at_end": "keep_replay=false",
    "retain_last_n": "snapshot_keep_last",
    "envs_to_exclude_during_training": "exclude_tasks",
    "eval_freq": "eval_every_frames",
    "eval_frequency": "eval_every_frames",
    "init_steps": "num_seed_frames, agent.num_expl_steps and seed_updates",
}


def _composition(error: Exception, names: list[str], moved: Mapping[str, str]) -> str:
    for pattern, message in _ADVICE:
        if match := re.search(pattern, str(error)):
            if match.groups() and match[1] in moved:
                return f"{match[1]} is now {moved[match[1]]}"
            if match.groups() and match[1] in _ELSEWHERE:
                return f"{match[1]}: there is no such key; here it is {_ELSEWHERE[match[1]]}"
            if match.groups() and match[1] in every_key().keys() - set(names):
                others = " and ".join(f"regime={name}" for name, one in REGIMES.items() if match[1] in one.every_key)
                own = synonym(match[1], names)
                advice = f"here it is {own}" if own else "leave it out, or choose that regime"
                return f"{match[1]}: is a key of {others} only (see --help); {advice}"
            if match.groups() and match[1] in names and match[1].startswith("agent."):
                return f"{match[1]}: the chosen agent takes no such argument (see --help)"
            near = did_you_mean(match[1], names) if "{near}" in message else ""
            return message.format(*match.groups(), near=near)
    cause = f": {_first_line(error.__cause__)}" if error.__cause__ is not None else ""
    return _first_line(error) + cause


def _first_line(error: BaseException) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
