"""A Ray cluster of several nodes on this machine."""

from __future__ import annotations

import fcntl
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ray.cluster_utils import Cluster

STORE_BYTES = 100 * 2**20  # of a node's object store
CONFIG = {
    "health_check_period_ms": 500,  # with the next, how soon it is seen that a node is dead
    "health_check_failure_threshold": 3,
    "worker_niceness": 0,  # with Ray's 15, actors hardly run beside other tests
}


@contextmanager
def clusters(none: bool = False) -> Iterator[None]:
    """Context of a test that starts a cluster, or of one while which no other test may have any: it would find it."""
    with (Path(tempfile.gettempdir()) / "drqv2_ray_tests.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX if none else fcntl.LOCK_SH)
        yield


def add_node(cluster: Cluster) -> Any:
    """Add a node with room for one actor; return it."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        return cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES)
    finally:  # a node's own would be a scheduler's to the runs of later tests
        signal.signal(signal.SIGTERM, before)


@contextmanager
def ray_cluster() -> Iterator[Cluster]:
    """A cluster of two nodes with room for one actor each, and one for the learner."""
    head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": STORE_BYTES, "_system_config": CONFIG}
    before = signal.getsignal(signal.SIGTERM)
    with clusters():
        cluster = Cluster(initialize_head=True, head_node_args=head)
        signal.signal(signal.SIGTERM, before)
        try:
            for _ in range(2):
                add_node(cluster)
            yield cluster
        finally:
            cluster.shutdown()


def kill_raylet(node: Any) -> None:
    """Kill what a node consists of, as the loss of a machine would; its workers end by themselves."""
    node.all_processes["raylet"][0].process.kill()
