"""Tasks that end with a part of the process, and calls that several callers share."""
