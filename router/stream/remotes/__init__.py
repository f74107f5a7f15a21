"""The remotes of a stream: their cursors, when these are read, and no-op writes for members."""
