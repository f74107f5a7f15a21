"""The client side of the MongoDB wire protocol: frames, BSON slices, connections, remote cursors."""
