"""What the streams of one process share."""

from typing import NamedTuple, Self

from router.catalog.cluster import Cluster
from router.memory import Memory
from router.stream.loads import MemberLoads
from router.stream.noop_writer import NoOpWriter
from router.stream_settings import StreamSettings


class StreamResources(NamedTuple):
    """What a stream uses of its process.

    ``loads`` counts the commands sent to each member, and what clients receive. ``memory`` counts
    remotes, and the bytes of events that are held: those of one user, where clients log in.
    """

    cluster: Cluster
    settings: StreamSettings
    loads: MemberLoads
    noop_writer: NoOpWriter
    memory: Memory

    @classmethod
    def of(cls, cluster: Cluster, settings: StreamSettings) -> Self:
        """Return the resources of a process, which closes ``noop_writer`` at its end."""
        loads = MemberLoads()
        noop_writer = NoOpWriter(cluster, settings, loads)
        memory = Memory(settings.total_buffer_bytes, settings.user_buffer)
        return cls(cluster, settings, loads, noop_writer, memory)
