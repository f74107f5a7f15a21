"""Change streams of the embedded mongod, made from its oplog.

``open_change_stream`` returns a cursor, whose ``next_batch`` returns events
(docs/protocol.md#cursor-replies to docs/protocol.md#events). A stream reads the oplog
(``oplog_filter``, ``logged_operations``), makes events and tokens (``events``,
``update_description``), looks documents up (``image_lookup``) and runs the client's stages
(``user_stages``, ``splitting``).
"""
