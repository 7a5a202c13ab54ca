"""One page about any number of runs: curves, returns, videos, differences, warnings.

python report.py exp_local/                 # writes exp_local/report.html; needs no network to be read
python report.py RUN_DIR OTHER_DIR out=a.html
python report.py exp_local/ watch=true      # rewritten every minute and served on http://127.0.0.1:8765
"""

from __future__ import annotations

if __name__ == "__main__":
    from drqv2.system.signals import exit_quietly_on_ctrl_c

    exit_quietly_on_ctrl_c()

import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from drqv2.config.key import Key
from drqv2.config.kinds import Bool, Choice, File, Float, Int, Text
from drqv2.errors import UserError
from drqv2.launch.arguments import run_tool
from drqv2.report.page import write
from drqv2.report.runs import utf8_safe
from drqv2.system.files import cannot_write

_ROOT = Path(__file__).resolve().parent
KEYS = {
    Key("out", Text(), "File to write.", null="report.html in the first directory"): None,
    Key(
        "videos",
        Choice("embed", "link", "none"),
        "The newest video of each run: within the page, as a link to its file, or none.",
    ): "embed",
    Key("published", File(), "CSV file of curves to stand behind.", null="those of DrQ-v2"): None,
    Key("history", File(), "JSON lines of benchmarks, drawn at the end.", null="results/history.jsonl"): None,
    Key("watch", Bool(), "Write the page anew all the time, and serve it to this machine's browsers."): False,
    Key("every", Float(1, 86_400), "Interval of watch.", "seconds"): 60.0,
    Key("port", Int(0, 65535), "Port of watch; 0 takes any that is free."): 8765,
}


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line that is described at the head of this module."""
    words = ["watch=true" if word == "--watch" else word for word in (sys.argv[1:] if argv is None else argv)]
    run_tool(lambda roots, args: report([Path(root) for root in roots], **args), __doc__, KEYS, words)


def report(
    roots: list[Path],
    *,
    out: str | None,
    videos: str,
    published: str | None,
    history: str | None,
    watch: bool,
    every: float,
    port: int,
) -> None:
    """Write the page, once or again and again; see KEYS.

    Raises:
        UserError: a directory is not there, or keys do not go together.
        DiskError: there is no room for the page.
    """
    if not roots:
        raise UserError("give directories with runs below them: python report.py exp_local/ [key=value ...]")
    for root in roots:
        if not root.is_dir():
            what = "it is a file; give the directory of a run" if root.exists() else "there is no such directory"
            raise UserError(f"{root}: {what}")
    if watch and videos == "link":
        raise UserError(
            "videos=link does not go with watch=true: only the page itself is served, its links would lead nowhere\n"
            "Give videos=embed, or leave watch out."
        )
    target = Path(out) if out else roots[0] / "report.html"

    theirs = Path(published) if published else _ROOT / "results/published/drqv2.csv"
    speed = Path(history) if history else _ROOT / "results/history.jsonl"

    def once() -> None:
        try:
            number, left_out = write(roots, target, theirs, videos, speed, round(every) if watch else None)
            size = target.stat().st_size
        except OSError as e:
            raise cannot_write(target, e, "give another out=FILE") from e
        _say(f"{number} runs: {target} ({size / 1e6:.1f} MB)")
        for words in left_out:
            _say(f"left out, {words}")

    once()
    if watch:
        _serve(target, port, every, once)


def _say(words: str) -> None:
    """Print a line, whatever its letters; one that finds no room goes out with the next."""
    with suppress(OSError):  # a log on a full disk
        print(utf8_safe(words), flush=True)


class _OnePage(SimpleHTTPRequestHandler):
    """Serves a single file, under / and its own name; nothing else of its folder."""

    def __init__(self, *args: Any, page: Path, **kwargs: Any) -> None:
        self._page = page
        super().__init__(*args, directory=str(page.parent), **kwargs)

    def translate_path(self, path: str) -> str:
        """Return the file for a request; one that is not there for any other than the page."""
        wanted = path.partition("?")[0]
        return str(self._page if wanted in ("/", f"/{self._page.name}") else self._page.parent / ".none")

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


def _serve(target: Path, port: int, every: float, once: Callable[[], None]) -> None:
    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), partial(_OnePage, page=target.resolve()))
    except OSError as e:
        raise UserError(f"port={port}: cannot be served on ({e.strerror}); give another, or port=0") from e
    threading.Thread(target=server.serve_forever, daemon=True).start()
    _say(f"http://127.0.0.1:{server.server_address[1]}, rewritten every {every:.0f} s; ctrl-C ends it")
    try:
        while True:
            time.sleep(every)
            try:
                once()
            except UserError as e:  # a disk that is full, a published= that is being rewritten: it may be over soon
                _say(f"the page stays as it was: {' '.join(str(e).split())}; the next attempt is in {every:.0f} s")
    finally:
        server.shutdown()
        server.server_close()


if __name__ == "__main__":
    main()
