"""The batches of a job that are past: read as of a time, made again, or left out."""
