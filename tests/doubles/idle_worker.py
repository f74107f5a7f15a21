"""A worker that reports nothing and runs until it is killed."""

import signal

signal.pause()
