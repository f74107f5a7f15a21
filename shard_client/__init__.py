"""Client side of the MongoDB wire protocol: frames, slices, connections, remote cursors."""
