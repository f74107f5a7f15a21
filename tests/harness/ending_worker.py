"""Stands for a worker that cannot start: ends at once with a status of its own."""

import sys

sys.exit(3)
