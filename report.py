"""Write an HTML report on any number of runs: curves, returns, videos, configurations, warnings.

python report.py exp_local/                 # writes exp_local/report.html, a self-contained page
python report.py RUN_DIR OTHER_DIR out=a.html
python report.py exp_local/ 'reference=[dreamerv3,tdmpc2]'  # with the curves of other methods
python report.py exp_local/ watch=true      # updates the page every minute and serves it on http://127.0.0.1:8765
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

from drqv2.config.formatting import counted
from drqv2.config.keys import Key
from drqv2.config.kinds import Bool, Choice, File, Float, Int, Names, Text
from drqv2.errors import UserError
from drqv2.launch.arguments import run_tool
from drqv2.report.page import write
from drqv2.system.files import cannot_write

_ROOT = Path(__file__).resolve().parent
KEYS = {
    Key("out", Text(), "Output file.", null="report.html in the first directory"): None,
    Key(
        "videos",
        Choice("embed", "link", "none"),
        "The newest video of each run: embedded in the page, as a link, or none.",
    ): "embed",
    Key("published", File(), "CSV file of curves to draw for comparison.", null="those of DrQ-v2"): None,
    Key(
        "reference",
        Names(),
        "Methods of results/published/reference_curves.csv to show from the start, and in the small panels; the others "
        "can be switched on in the legends.",
        null="none",
    ): None,
    Key("history", File(), "JSON lines of benchmark results to plot.", null="results/history.jsonl"): None,
    Key("watch", Bool(), "Keep updating the page and serve it to browsers on this machine."): False,
    Key("every", Float(1, 86_400), "Update interval of watch.", "seconds"): 60.0,
    Key("port", Int(0, 65535), "Port of watch; 0 chooses a free one."): 8765,
}


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line described in the module's docstring."""
    args = sys.argv[1:] if argv is None else argv
    run_tool(lambda roots, kwargs: report([Path(root) for root in roots], **kwargs), __doc__, KEYS, args)


def report(
    roots: list[Path],
    *,
    out: str | None,
    videos: str,
    published: str | None,
    reference: list[str] | None,
    history: str | None,
    watch: bool,
    every: float,
    port: int,
) -> None:
    """Write the page once, or repeatedly with `watch`; see KEYS.

    Raises:
        UserError: a directory does not exist, or the keys conflict.
        DiskError: the disk is full.
    """
    if not roots:
        raise UserError("give one or more directories that contain runs: python report.py exp_local/ [key=value ...]")
    for root in roots:
        if not root.is_dir():
            what = "is a file; give the directory of a run" if root.exists() else "no such directory"
            raise UserError(f"{root}: {what}")
    if watch and videos == "link":
        raise UserError(
            "videos=link does not work with watch=true, which serves only the page itself\n"
            "Use videos=embed, or omit watch."
        )
    target = Path(out) if out else roots[0] / "report.html"
    curves = Path(published) if published else _ROOT / "results/published/drqv2.csv"
    others = _ROOT / "results/published/reference_curves.csv"
    speed = Path(history) if history else _ROOT / "results/history.jsonl"

    def update() -> None:
        try:
            number, omitted = write(
                roots, target, curves, videos, speed, round(every) if watch else None, others, reference or ()
            )
            size = target.stat().st_size
        except OSError as e:
            raise cannot_write(target, e, "give another out=FILE") from e
        _print(f"{counted(number, 'run')}: {target} ({size / 1e6:.1f} MB)")
        for message in omitted:
            _print(f"omitted: {message}")

    update()
    if watch:
        _serve(target, port, every, update)


def _print(line: str) -> None:
    with suppress(OSError):  # a log on a full disk; the line stays in the buffer
        print(line.encode(errors="replace").decode(), flush=True)  # file names may not be valid UTF-8


class _OnePage(SimpleHTTPRequestHandler):
    """Serves a single file, under / and its own name, and nothing else in its folder."""

    def __init__(self, *args: Any, page: Path, **kwargs: Any) -> None:
        self._page = page
        super().__init__(*args, directory=str(page.parent), **kwargs)

    def translate_path(self, path: str) -> str:
        """Return the page's path, or for any other request a path that does not exist."""
        requested = path.partition("?")[0]
        return str(self._page if requested in ("/", f"/{self._page.name}") else self._page.parent / ".none")

    def log_message(self, format: str, *args: Any) -> None:
        """Do not log requests."""


def _serve(target: Path, port: int, every: float, update: Callable[[], None]) -> None:
    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), partial(_OnePage, page=target.resolve()))
    except OSError as e:
        raise UserError(f"port={port} is not available ({e.strerror}); give another, or port=0") from e
    threading.Thread(target=server.serve_forever, daemon=True).start()
    _print(f"http://127.0.0.1:{server.server_address[1]}, updated every {every:.0f} s; stop with ctrl-C")
    try:
        while True:
            time.sleep(every)
            try:
                update()
            except UserError as e:  # may be transient: a full disk, a published= file being rewritten
                _print(f"the page was not updated: {' '.join(str(e).split())}; retrying in {every:.0f} s")
    finally:
        server.shutdown()
        server.server_close()


if __name__ == "__main__":
    main()
