"""Settings that all tests share."""

import os
import sys

from absl import logging as absl_logging
from hypothesis import settings

# No deadline: machines differ. In continuous integration the same examples each time.
settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")

# Hydra closes every log handler that it finds, and absl's (dm_control's) closes its stream with it: that must not be
# the one in which pytest captures what a test prints.
absl_logging.get_absl_handler().python_handler.stream = sys.__stderr__
