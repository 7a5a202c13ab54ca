"""What pyproject.toml cannot say: a wheel has the programs, their configuration and the published curves in a folder.

In the repository they are at the top. As top-level modules of a wheel, `train` or `video` would be in the way of
other people's; see drqv2/programs.py.
"""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

PROGRAMS = ("train.py", "eval.py", "report.py", "video.py", "replay_buffer.py")
DATA = ("cfgs/**/*.yaml", "results/published/*.csv")


class BuildWithPrograms(build_py):
    """Adds drqv2/program to a wheel; an editable installation uses the repository."""

    def run(self) -> None:
        """Build as usual, then copy."""
        super().run()
        if self.editable_mode:
            return
        root = Path(__file__).resolve().parent
        for source in (*map(root.joinpath, PROGRAMS), *(path for pattern in DATA for path in root.glob(pattern))):
            target = Path(self.build_lib, "drqv2", "program", source.relative_to(root))
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)


setup(cmdclass={"build_py": BuildWithPrograms})
