"""The merge of all remotes of a stream into one ordered log, without I/O."""
