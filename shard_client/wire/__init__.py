"""MongoDB's wire protocol: bytes, frames, connections."""
