"""DrQ-v2 (arXiv 2107.09645) and IMPALA (arXiv 1802.01561) written plainly from their papers, without optimization.

They are the benchmarks' baselines. They share no algorithm's code with the project, and compute the same: the tests of
the benchmarks hold them together.
"""

from drqv2 import envs

envs.choose_backend()  # before dm_control is imported
