"""The merge: shard batches in, one ordered stream out (docs/design.md#the-merge)."""
