"""The cluster: config server and shards as replica sets, one clock, connections to each."""

from collections.abc import Callable, Mapping

from bson.timestamp import Timestamp

from router.cursors.limits import StreamLimits
from shard_client.cluster_clock import ClusterClock
from shard_client.connection import Address, Connection
from shard_client.replica_set import ReplicaSet

CONFIG = "config"
"""The target that is the config server (docs/protocol.md, section 6)."""

ReplicaSetFactory = Callable[[str, tuple[Address, ...]], ReplicaSet]


class Cluster:
    """A sharded cluster, known by its config server (``rsName/host:port[,host:port]``).

    ``replica_set`` makes the monitoring of one replica set from its name and seeds; the default is
    the driver's (Motor). ``clock`` is the cluster time that replies carried; advance it with what
    clients gossip. Must be made in a running loop.
    """

    clock: ClusterClock

    def __init__(
        self,
        configdb: str,
        limits: StreamLimits | None = None,
        *,
        replica_set: ReplicaSetFactory | None = None,
    ) -> None:
        raise NotImplementedError

    async def shards(self) -> tuple[Mapping[str, str], Timestamp]:
        """Read the shard list: host strings by shard id, and a config server's time before the read.

        Raises CommandError (133, labelled resumable) when the config server stays unreachable.
        """
        raise NotImplementedError

    async def connect(self, target: str, host: str | None = None) -> Connection:
        """Open a connection to the primary of ``target``: a shard id or ``"config"``.

        ``host`` is the shard's host string where the caller knows it. Raises CommandError (133,
        labelled resumable), NetworkError.
        """
        raise NotImplementedError

    @property
    def token_version(self) -> int:
        """The version of resume tokens that the members seen make (docs/protocol.md, section 3)."""
        raise NotImplementedError

    async def close(self) -> None:
        """Close all monitoring and connections of the cluster's own."""
        raise NotImplementedError
