"""Settings that all tests share."""

import os

from hypothesis import settings

# No deadline: machines differ. In continuous integration the same examples each time.
settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")
