"""The benchmarks' baseline: DrQ-v2 as in the paper (arXiv 2107.09645), without optimisation.

It shares no algorithm code with the project but computes the same, as tests/test_benchmarks.py checks.
"""

import drqv2.envs  # noqa: F401 (chooses the OpenGL backend, which must happen before dm_control is imported)
