"""The job that `mergerouter job` starts, and what looks after it."""
