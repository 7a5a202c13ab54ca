"""The one description of every configuration key: meaning, type, unit and bounds. Defaults live in cfgs/config.yaml.

`drqv2.config` checks values against it; `--help` and docs/configuration.md are made from it here.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

CFGS = Path(__file__).resolve().parents[2] / "cfgs"
TIERS = ("easy", "medium", "hard")


def encoder_side(image_size: int) -> int:
    """Return the side of the encoder's last feature map: four 3x3 convolutions with strides 2, 1, 1, 1."""
    return (image_size - 3) // 2 + 1 - 3 * 2


SMALLEST_IMAGE = next(size for size in range(3, 99) if encoder_side(size) >= 1)
LARGEST_RENDER = 2048  # pixels: what OpenGL drivers can be counted on to draw off-screen


@dataclass(frozen=True)
class Key:
    """One configuration key.

    Args:
        name: dotted name.
        kind: int, float, bool, text, name (a dotted Python name), file, folder, device, schedule, shape or choice.
        meaning: one line.
        unit: what a number counts.
        low: least value allowed, or the bound it must be above if `above`.
        high: greatest value allowed.
        above: `low` itself is not allowed.
        even: only even numbers.
        null: null is allowed, with this meaning.
        choices: the values of a choice.
    """

    name: str
    kind: str
    meaning: str
    unit: str = ""
    low: float | None = None
    high: float | None = None
    above: bool = False
    even: bool = False
    null: str = ""
    choices: tuple[str | bool, ...] = ()

    @property
    def allowed(self) -> str:
        """What values the key takes, in words."""
        text = {
            "int": "an even whole number" if self.even else "a whole number",
            "float": "a number",
            "bool": "true or false",
            "text": "text",
            "name": "a dotted Python name such as module.name",
            "file": "a file that exists",
            "folder": "a directory that exists",
            "device": "auto, cpu, cuda or cuda:N",
            "schedule": "a number, linear(init,final,duration) or step_linear(init,final1,duration1,final2,duration2)",
            "choice": ", ".join(map(show, self.choices[:-1])) + f" or {show(self.choices[-1])}" if self.choices else "",
            "shape": "left unset: it is taken from the environment",
        }[self.kind]
        if self.low is not None:
            text += f" above {self.low}" if self.above else f" of at least {self.low}"
        if self.high is not None:
            text += f" and at most {self.high}"
        return text + (" or null" if self.null else "")


GROUPS: dict[str, tuple[Key, ...]] = {
    "Task": (
        Key("task_name", "text", "Task, set by task=NAME."),
        Key(
            "obs_type",
            "choice",
            "What the agent observes: stacked images, or the task's own numbers as one vector.",
            choices=("pixels", "state"),
        ),
        Key("frame_stack", "int", "Images stacked into one observation, newest last.", "images", 1),
        Key("action_repeat", "int", "Environment frames for which each action is held.", "frames", 1),
        Key("image_size", "int", "Side of the square images that the agent sees.", "pixels", SMALLEST_IMAGE),
        Key(
            "render",
            "choice",
            "How dm_control's tasks are drawn: pixel for pixel as dm_control does, or faster with coarser shadows, "
            "which changes, on average over a task, up to 0.3 % of the pixels.",
            choices=("exact", "fast"),
        ),
        Key("discount", "float", "Discount (gamma) of one agent step.", "", 0, 1, above=True),
        Key(
            "env._target_",
            "name",
            "Your own environment: a function or class that returns a dm_env or gymnasium environment; "
            "+env.x=1 hands it an argument.",
            null="the dm_control task task_name",
        ),
        Key(
            "num_envs",
            "int",
            "Environments that are stepped side by side, each in a process of its own. Another number is another run: "
            "with more, an update knows less of the newest steps.",
            "environments",
            1,
        ),
        Key(
            "overlap",
            "bool",
            "Step a single environment in a process of its own while the agent learns; the results are the same.",
        ),
    ),
    "Length": (
        Key("num_train_frames", "int", "Length of the run.", "frames", 1),
        Key("num_seed_frames", "int", "Frames collected before the first update.", "frames", 0),
    ),
    "Evaluation": (
        Key("eval_every_frames", "int", "Interval between evaluations; at least action_repeat.", "frames", 1),
        Key("num_eval_episodes", "int", "Episodes of one evaluation.", "episodes", 1),
        Key(
            "num_eval_envs",
            "int",
            "Environments that play them side by side; the results are the same for any number.",
            "environments",
            1,
        ),
    ),
    "Replay": (
        Key("replay_buffer_size", "int", "Capacity; at least one episode.", "transitions", 1),
        Key("replay_buffer_num_workers", "int", "Processes that load batches; 0 loads them in line.", "", 0, 8),
        Key(
            "replay_device",
            "choice",
            "Where batches are gathered from: episode files through the page cache, or a copy of their frames in the "
            "GPU's memory. auto: the GPU's, if the learner is there and they take at most 60 % of what is free.",
            choices=("auto", "disk", "cuda"),
        ),
        Key("nstep", "int", "Rewards summed before the bootstrap.", "agent steps", 1),
        Key("batch_size", "int", "Transitions in one update.", "transitions", 1),
        Key("keep_replay", "bool", "Keep the stored episodes when the run ends for good."),
    ),
    "Learner": (
        Key("lr", "float", "Learning rate of Adam, for encoder, actor and critic.", "", 0, above=True),
        Key("feature_dim", "int", "Width of the trunks behind the encoder.", "units", 1),
        Key("stddev_schedule", "schedule", "Standard deviation of the exploration noise; durations in agent steps."),
        Key("updates_per_step", "int", "Calls of agent.update for each agent step.", "calls", 1),
    ),
    "Run": (
        Key("seed", "int", "Seed from which every random stream of the run is spawned.", "", 0, 2**32 - 1),
        Key("device", "device", "Where the agent lives; auto takes the GPU if there is one."),
        Key(
            "precision",
            "choice",
            "Precision of products in updates; auto takes bf16 where the hardware multiplies it natively. Handed to "
            "agents whose signature names it.",
            choices=("auto", "fp32", "bf16"),
        ),
        Key(
            "compile",
            "choice",
            "On a GPU, replay updates as one CUDA graph; on a CPU, compile the networks, which needs a C++ compiler. "
            "auto: true on a GPU, false on a CPU, where it was measured to gain nothing.",
            choices=("auto", True, False),
        ),
        Key("experiment", "text", "A label of your own, stored with the run."),
        Key(
            "agent_dir",
            "folder",
            "Directory with agent files of your own, in which agent._target_ is looked up first.",
            null="none",
        ),
        Key("init_from", "file", "Snapshot whose weights alone start a new run.", null="fresh weights"),
        Key(
            "resume",
            "text",
            "Run directory to go on with, or latest. Read before everything else: the run's own config.yaml is the "
            "base, other key=value arguments go on top.",
            null="a new run",
        ),
        Key("resume_force", "bool", "Go on with a run under other values of keys that change what it learns."),
    ),
    "Snapshots": (
        Key(
            "save_snapshot",
            "bool",
            "Write snapshot.pt while training, at each evaluation, at the end and when told to leave, so that the run "
            "can be gone on with.",
        ),
        Key("snapshot_every_seconds", "float", "Seconds of training from one snapshot to the next.", "seconds", 0),
        Key(
            "snapshot_keep",
            "int",
            "Points of the run, evenly spaced, and its start, whose weights are kept for good as weights_FRAME.pt.",
            "files",
            0,
        ),
    ),
    "Records": (
        Key(
            "console",
            "choice",
            "A dashboard (rich), a line for each row of the logs (plain), or neither (off); auto: a dashboard on a "
            "terminal, lines elsewhere.",
            choices=("auto", "rich", "plain", "off"),
        ),
        Key("use_tb", "bool", "Write TensorBoard events."),
        Key(
            "use_wandb", "bool", "Log to Weights & Biases too (pip install wandb; WANDB_MODE=offline without a server)."
        ),
        Key("save_video", "bool", "Film the first episode of each evaluation."),
        Key("save_train_video", "bool", "Film training episodes as the agent saw them."),
        Key("train_video_every_frames", "int", "Interval between these; at least action_repeat.", "frames", 1),
        Key("render_size", "int", "Side of the square videos.", "pixels", 16, even=True),
        Key(
            "diagnostics_every_frames",
            "int",
            "Interval between gradient norms, dormant units, Q against returns; at least action_repeat.",
            "frames",
            1,
        ),
    ),
    "Agent": (
        Key("agent._target_", "name", "Class of the agent."),
        Key("agent.obs_shape", "shape", "Shape of an observation, filled in from the environment."),
        Key("agent.action_shape", "shape", "Shape of an action, filled in from the environment."),
        Key("agent.device", "device", "As device."),
        Key("agent.lr", "float", "As lr.", "", 0, above=True),
        Key("agent.critic_target_tau", "float", "Share of the critic that enters its target.", "", 0, 1, above=True),
        Key("agent.update_every_steps", "int", "Interval between updates.", "agent steps", 1),
        Key("agent.use_tb", "bool", "As use_tb: whether update returns metrics."),
        Key("agent.num_expl_steps", "int", "Steps of uniformly random actions at the start.", "agent steps", 0),
        Key("agent.hidden_dim", "int", "Width of the hidden layers of actor and critic.", "units", 1),
        Key("agent.feature_dim", "int", "As feature_dim.", "units", 1),
        Key("agent.stddev_schedule", "schedule", "As stddev_schedule."),
        Key("agent.stddev_clip", "float", "Bound on the noise in updates.", "", 0, above=True, null="no bound"),
    ),
}
# A run may be gone on with under other values of these: they move no curve, or only in the last bits of its numbers.
FREE = frozenset(
    "num_train_frames eval_every_frames num_eval_episodes num_eval_envs overlap replay_buffer_num_workers "
    "replay_device keep_replay device precision compile experiment agent_dir init_from resume resume_force "
    "save_snapshot snapshot_every_seconds snapshot_keep console use_tb use_wandb save_video save_train_video "
    "train_video_every_frames render_size diagnostics_every_frames agent.device agent.use_tb".split()
)
KEYS: dict[str, Key] = {key.name: key for keys in GROUPS.values() for key in keys}


def tasks() -> list[str]:
    """Return the names of the tasks in cfgs/task, sorted; the tiers, which set no task_name, are not among them."""
    found = (re.search(r"^task_name:\s*(\S+)", p.read_text(), re.M) for p in CFGS.glob("task/*.yaml"))
    return sorted(match[1] for match in found if match)


def show(value: Any) -> str:
    """Return `value` as it would be typed on the command line; a text that looks like something else is quoted."""
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(show, value)) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{name}:{show(item)}" for name, item in value.items()) + "}"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str) and re.fullmatch(r"|null|true|false|[-+\d.][-+\w.]*", value, re.IGNORECASE):
        return repr(value)
    return str(value)


def _load(path: str) -> DictConfig:
    cfg = OmegaConf.load(CFGS / path)
    assert isinstance(cfg, DictConfig)
    return cfg


def _defaults() -> dict[str, str]:
    """Dotted name -> default, as text, of every key."""
    cfg = _load("config.yaml")
    plain: Any = OmegaConf.to_container(cfg, resolve=False)
    found = {}
    for name in KEYS:
        node, _, leaf = name.rpartition(".")
        found[name] = show((plain[node] if node else plain)[leaf])
    found["task_name"] = next(show(d["task"]) for d in plain["defaults"] if isinstance(d, dict) and "task" in d)
    return {name: "-" if text == "???" else text for name, text in found.items()}


def help_text(program: str = "train.py") -> str:
    """Return what `--help` prints: how to call, tasks, presets and every key with its default."""
    defaults = _defaults()
    lines = [
        f"usage: python {program} [task=NAME] [preset=NAME] [key=value ...]",
        f"       python {program} resume=RUN_DIR|latest [key=value ...]   go on with a run in its own directory",
        f"       python {program} -m seed=1,2,3 [key=value ...]           one run after another",
        "With -m: hydra/launcher=joblib|slurm|ray (side by side, or on a cluster), hydra/sweeper=search (Optuna); see",
        "docs/deployment.md.",
        "",
        "Other options: --cfg job (print the configuration and stop), --hydra-help. ~agent.x takes an argument of the",
        "agent away, +agent.x=1 adds one.",
        "",
        *textwrap.wrap("task: " + ", ".join(tasks()), 118, subsequent_indent="  "),
        "preset: paper (the task's own values), " + ", ".join(p for p in presets() if p != "paper"),
    ]
    for group, keys in GROUPS.items():
        lines += ["", group]
        for key in keys:
            unit = f", {key.unit}" if key.unit else ""
            null = f" (null: {key.null})" if key.null else ""
            text = f"{key.meaning}{null} [{key.allowed}{unit}; default {defaults[key.name]}]"
            indent = " " * 30
            lines += textwrap.wrap(f"  {key.name:<27} {text}", 118, subsequent_indent=indent, break_on_hyphens=False)
    return "\n".join(lines)


def presets() -> list[str]:
    """Return the names of the presets, sorted."""
    return sorted(path.stem for path in CFGS.glob("preset/*.yaml"))


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    cells = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return ["| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *cells]]


def _flat(cfg: DictConfig) -> dict[str, str]:
    plain: Any = OmegaConf.to_container(cfg)
    found = {name: plain[name] for name in plain if name not in ("defaults", "task_name", "agent")}
    found |= {f"agent.{name}": value for name, value in plain.get("agent", {}).items()}
    return {name: show(value) for name, value in found.items()}


def markdown() -> str:
    """Return docs/configuration.md."""
    defaults = _defaults()
    lines = [
        "# Configuration",
        "",
        "Made by `python -m drqv2.config > docs/configuration.md` from `drqv2/config/schema.py` and `cfgs/`.",
        "",
        "Later wins: `cfgs/config.yaml`, then the task (`task=cheetah_run`), then the preset (`preset=cpu`), then what",
        "stands on the command line (`batch_size=512`). A run writes the result to `config.yaml` in its directory.",
        "",
        "*frames* are environment frames, *agent steps* are `action_repeat` frames each. A default of `${lr}` follows",
        "the key of that name. `agent` may lose keys (`~agent.stddev_clip`) and gain them (`+agent.x=1`): it must fit",
        "the arguments of `agent._target_`. `env` may gain them likewise.",
    ]
    for group, keys in GROUPS.items():
        rows = []
        for key in keys:
            meaning = key.meaning + (f" null: {key.null}." if key.null else "")
            rows.append([f"`{key.name}`", f"`{defaults[key.name]}`", key.allowed, key.unit, meaning])
        lines += ["", f"## {group}", "", *_table(["key", "default", "allowed", "unit", "meaning"], rows)]
    rows = []
    for task in tasks():
        cfg = _load(f"task/{task}.yaml")
        own = ", ".join(f"`{name}={value}`" for name, value in _flat(cfg).items())
        rows.append([f"`{task}`", next(tier for tier in cfg.defaults if tier != "_self_"), own])
    tiers = [[tier, *(f"`{value}`" for value in _flat(_load(f"task/{tier}.yaml")).values())] for tier in TIERS]
    lines += ["", "## Tasks", "", *_table(["tier", "num_train_frames", "stddev_schedule"], tiers)]
    lines += ["", *_table(["task", "tier", "its own values"], rows)]
    sets = [[f"`{p}`", ", ".join(f"`{k}={v}`" for k, v in _flat(_load(f"preset/{p}.yaml")).items())] for p in presets()]
    lines += ["", "## Presets", "", *_table(["preset", "sets"], [[p, text or "nothing"] for p, text in sets])]
    return "\n".join(lines)
