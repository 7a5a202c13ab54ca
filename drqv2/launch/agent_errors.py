"""Messages about errors in the user's own agent files: their frames, not the project's."""

from __future__ import annotations

import traceback

from drqv2.errors import UserError

AGENT_MODULES = "agent_dir_"  # with which the names of modules from an agent_dir begin, see agents/loading.py


def agent_frames(error: Exception) -> list[traceback.FrameSummary]:
    """Return the frames of a traceback that belong to modules from an agent_dir, outermost first."""
    walked = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    frames = traceback.extract_tb(error.__traceback__)
    return [frame for frame, name in zip(frames, walked, strict=True) if name.startswith(AGENT_MODULES)]


def explain_agent(error: Exception, advice: str = "") -> UserError | None:
    """Return the message for an error raised in an agent's files; None if none of them is involved."""
    shown, inmost = agent_frames(error), traceback.extract_tb(error.__traceback__)[-1]
    if not shown:
        return None
    inner = "" if inmost == shown[-1] else f"\n  raised in {inmost.filename}, line {inmost.lineno}"
    return in_agent(error, "".join(traceback.format_list(shown)).rstrip() + inner, advice)


def in_agent(error: Exception, *lines: str) -> UserError:
    """Return an error of exit code 1 that names another and ends with `lines`."""
    told = UserError("\n".join([f"{type(error).__name__} in your agent: {error}", *filter(None, lines)]))
    told.code = 1
    return told
