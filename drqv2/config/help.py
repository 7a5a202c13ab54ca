"""Pages made from the table of keys: what `--help` prints, and docs/configuration.md."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from omegaconf import OmegaConf

from drqv2.config.cfgs import CFGS, leaves, load, presets, tasks
from drqv2.config.dm_control import MANIPULATION, other_tasks
from drqv2.config.formatting import show
from drqv2.config.keys import Key
from drqv2.config.regime import Regime
from drqv2.config.schema import FIRST, REGIMES, defaults, find

_HEAD = """\
# Configuration

Made by `python -m drqv2.config > docs/configuration.md` from `drqv2/config/regimes/`, the signatures of
`drqv2/agents/` and `cfgs/`.

Later wins: `cfgs/config.yaml`, then the agent (`agent=spq`, in some regimes), the regime (`regime=drqv2`), the task
(`task=cheetah_run`), the preset (`preset=cpu`), settings that a regime always forces (`cfgs/last/`), and last the
command line (`batch_size=512`). A run writes the result to `config.yaml` in its directory.

A heading names the regimes that have the keys below it; without names, all regimes have them. Where regimes have
different defaults, the first one is that of all regimes not named after it: `2`; impala, ppo: `1`. A default of
`${lr}` follows the key of that name.

*frames* are environment frames, *agent steps* are `action_repeat` frames each. You can remove keys of `agent`
(`~agent.stddev_clip`) and add some (`+agent.x=1`): they must match the arguments of `agent._target_`. You can add keys
of `env` in the same way.

*resume* tells whether `resume=RUN_DIR` may change a key: always (free), only with `resume_force=true` (force), or
never (fixed)."""

_OTHER_TASKS = """\
Every other task of dm_control has the values of `medium`. Those of its suite are named DOMAIN_TASK:

{suite}.

Those of its manipulation tasks are named without the ending, in place of which there is `obs_type`: states are those of
dm_control's `reach_site_features`, images those of its `reach_site_vision`. `task=reach_site_features` also sets
`obs_type=state`, `task=reach_site_vision` `obs_type=pixels`.

{manipulation}.

`ball_in_cup_catch` is another name of `cup_catch`. Without `camera`, tasks are seen by their camera 0, with these
exceptions: 2 of `quadruped`; `y-axis` of `dog`, since camera 0 of `dog_fetch` does not see the dog; `cam1` of `lqr`,
whose camera 0 loses sight of the masses; `front_close` of the manipulation tasks. In dm_control, episodes of `lqr` have
no time limit and its actions no bounds; here they are 30 s (1000 frames) and [-1, 1].

`+env.time_limit=5` (seconds) and other arguments of the functions in dm_control's suite reach the task, such as
`+env.fully_observable=false` of `manipulator` and `stacker`; its manipulation tasks take none."""


def help_text(regime: str = FIRST) -> str:
    """Return what `--help` prints: usage, tasks, presets and the keys of a regime; raises as `find`."""
    chosen = find(regime)
    others = "".join(f", {name} ({other.purpose})" for name, other in REGIMES.items() if name != regime)
    lines = [
        "usage: python train.py [regime=NAME] [task=NAME] [preset=NAME] [key=value ...]",
        "       python train.py resume=RUN_DIR|latest [key=value ...]   resume a run in its own directory",
        "       python train.py -m seed=1,2,3 [key=value ...]           one run after another",
        "With -m: hydra/launcher=joblib|slurm|ray (in parallel, or on a cluster), hydra/sweeper=search (Optuna); see",
        "docs/deployment.md.",
        "",
        "Other options: --cfg job (print the configuration and stop), --hydra-help.",
        "~agent.x removes an argument of the agent, +agent.x=1 adds one.",
        "",
        _fill(f"regime: {regime} ({chosen.purpose}; its keys are below){others}", 2),
        _fill(
            "task: " + ", ".join(tasks()) + f"; and the {len(other_tasks())} others of dm_control's suite and "
            "manipulation tasks (fish_swim, dog_run, stack_2_bricks; docs/configuration.md lists them)",
            2,
        ),
        _fill("preset: paper (the task's own values), " + ", ".join(name for name in presets() if name != "paper"), 2),
    ]
    for title, group in _shown(chosen).items():
        lines += ["", title, *(key_text(key, default, 27) for key, default in group)]
    return "\n".join(lines)


def key_text(key: Key, default: str, width: int) -> str:
    """Return a key's entry in a help text: its name in `width` columns, its meaning, allowed values and default."""
    unit = f", {key.unit}" if key.unit else ""
    null = f" (null: {key.null})" if key.null else ""
    text = f"  {key.name:<{width}} {key.meaning}{null} [{key.allowed}{unit}; default {default}]"
    return _fill(text, width + 3)


def markdown() -> str:
    """Return docs/configuration.md."""
    lines = [_HEAD]
    sections = _key_tables() | {"Tasks": [*_file_table("task"), "", _other_tasks()], "Presets": _file_table("preset")}
    for heading, table in sections.items():
        lines += ["", f"## {heading}", "", *table]
    return "\n".join(lines)


def _key_tables() -> dict[str, list[str]]:
    """Return a table for each title and set of regimes with keys under it, by heading; each key is in one of them.

    Regimes may describe a key of the same name differently; then it is in several tables.
    """
    defaults: dict[tuple[str, str, tuple[str, ...]], dict[str, str]] = {}  # by regime; by title, key and description
    for regime in REGIMES.values():
        for title, group in _shown(regime).items():
            for key, default in group:
                defaults.setdefault((title, key.name, _description(key)), {})[regime.name] = default
    tables: dict[tuple[str, tuple[str, ...]], list[list[str]]] = {}
    for (title, name, description), values in defaults.items():
        tables.setdefault((title, tuple(values)), []).append([f"`{name}`", _default(values), *description])
    titles = sorted(dict.fromkeys(title for title, _ in tables), key=lambda title: title.startswith("Agent"))
    ordered = sorted(tables.items(), key=lambda table: (titles.index(table[0][0]), -len(table[0][1])))
    head = ["key", "default", "allowed", "unit", "resume", "meaning"]
    return {_heading(title, regimes): _table(head, rows) for (title, regimes), rows in ordered}


def _heading(title: str, regimes: Sequence[str]) -> str:
    return title if len(regimes) == len(REGIMES) else f"{title} ({', '.join(regimes)})"


def _description(key: Key) -> tuple[str, ...]:
    """Return the cells of a key's row after its name and default."""
    return key.allowed, key.unit, key.resume, key.meaning + (f" null: {key.null}." if key.null else "")


def _default(values: Mapping[str, str]) -> str:
    """Return the cell of a key's defaults by regime: the first, then others with the regimes that have them."""
    regimes: dict[str, list[str]] = {}
    for regime, value in values.items():
        regimes.setdefault(value, []).append(regime)
    first, *others = regimes
    return "; ".join([f"`{first}`", *(f"{', '.join(regimes[value])}: `{value}`" for value in others)])


def _file_table(folder: str) -> list[str]:
    """Return a table of what the files of a folder of cfgs/ set; those that others start from come first."""
    rows, last = [], tasks()
    for path in sorted(CFGS.glob(f"{folder}/*.yaml"), key=lambda path: (path.stem in last, path.stem)):
        values = leaves(OmegaConf.to_container(OmegaConf.load(path)))
        bases = [_base(entry) for entry in values.pop("defaults", []) if entry != "_self_"]
        own = [f"`{name}={show(value)}`" for name, value in values.items() if name != "task_name"]
        rows.append([f"`{path.stem}`", ", ".join(bases + own) or "nothing"])
    return _table([folder, "sets"], rows)


def _base(entry: str | Mapping[str, str]) -> str:
    """Return what an entry of `defaults` chooses: a file of the folder, or of another one (override /agent: NAME)."""
    if isinstance(entry, str):
        return entry
    return ", ".join(f"`{group.rpartition('/')[2]}={name}`" for group, name in entry.items())


def _other_tasks() -> str:
    """Return the section on the tasks without a file."""
    suite, manipulation = ([name for name in other_tasks() if (name in MANIPULATION) == arm] for arm in (False, True))
    return _OTHER_TASKS.format(
        **{
            kind: textwrap.fill(", ".join(f"`{name}`" for name in names), 118, break_on_hyphens=False)
            for kind, names in (("suite", suite), ("manipulation", manipulation))
        }
    )


def _shown(regime: Regime) -> dict[str, list[tuple[Key, str]]]:
    """Return the keys of a regime with their defaults as text, by title.

    Those of its first agent are followed by what is different in each other one.
    """
    values = leaves(defaults(regime.name))
    entries: Any = OmegaConf.to_container(load(CFGS / "config.yaml").defaults)
    values["task_name"] = next(entry["task"] for entry in entries if isinstance(entry, dict) and "task" in entry)
    values["regime"] = FIRST
    shown = {
        title: [(key, _text(values[key.name])) for key in group.values()] for title, group in regime.groups.items()
    }
    usual: dict[str, tuple[str, ...]] = {}  # default and description
    for name, agent in regime.agents.items():
        values = leaves(defaults(regime.name, name))
        own = [key for key in regime.keys_of(agent.target).values() if key.name.startswith("agent.")]
        told = {key.name: (_text(values[key.name]), *_description(key)) for key in own}
        title = f"Agent, with agent={name}" if usual else "Agent"
        different = [key for key in own if told[key.name] != usual.get(key.name)]
        shown[title] = [(key, told[key.name][0]) for key in different if not usual or key.name != "agent._target_"]
        usual = usual or told
    return {title: group for title, group in shown.items() if group}


def _text(default: Any) -> str:
    return "-" if default == "???" else show(default)


def _fill(text: str, indent: int) -> str:
    return textwrap.fill(text, 118, subsequent_indent=" " * indent, break_on_hyphens=False)


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    cells = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return ["| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *cells]]
