"""DrQ-v2 written straight from the paper (arXiv 2107.09645), with no thought of speed: the benchmarks' baseline.

It shares no algorithm's code with the project, and computes the same: tests/test_benchmarks.py holds the two together.
"""

from drqv2 import envs

envs.choose_backend()  # before dm_control is imported
