"""Events of one stream on a scripted cluster."""

from tests.doubles.scripted_cluster import ScriptedCluster

BIG = 70_000
"""The size of an event that fills one block of the log."""


def write(cluster: ScriptedCluster, *seconds: int, size: int = 0) -> None:
    """Write one event a second, on the shards in turn; then all members advance past it."""
    for second in seconds:
        shard = cluster.shards[f"s{second % 3}"]
        shard.insert(second, second, filler="x" * size)
        cluster.noop(second + 1)
