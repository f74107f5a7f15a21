"""A worker that fails to start: it exits at once with its own status."""

import sys

sys.exit(3)
