"""What the processes of one router tell and ask each other.

Commands for another worker's cursors are passed on in ``router/commands/other_workers.py``.
"""
