"""Change streams of the embedded mongod, made from its oplog.

``open_change_stream`` returns a cursor, whose ``next_batch`` returns events
(docs/protocol.md#cursor-replies to docs/protocol.md#events). A stream reads the oplog
(``oplog_filter``, ``logged_operations``), makes events and tokens (``events``,
``update_description``), looks documents up (``image_lookup``) and runs the client's stages
(``user_stages``, ``splitting``).
"""

from embedded.change_streams.cursor import (
    ChangeStreamCursor,
    first_batch_size,
    is_change_stream,
    open_change_stream,
)
from embedded.change_streams.user_stages import UserStages

__all__ = [
    "ChangeStreamCursor",
    "UserStages",
    "first_batch_size",
    "is_change_stream",
    "open_change_stream",
]
