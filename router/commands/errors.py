"""Convert the errors of shards to those that mongos sends to clients."""

from router.commands.node import Node
from shard_client.errors import CommandError


def as_mongos_says(node: Node, error: CommandError) -> CommandError:
    """Return a change stream's error with mongos's labels and code (docs/protocol.md#opening).

    State change errors keep their code only while the router itself shuts down.
    """
    labelled = error.with_change_stream_label()
    return labelled if node.topology.quiescing else labelled.without_state_change()
