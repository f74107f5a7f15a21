"""Change events: positions and tokens, and the fields of an event as slices of its bytes.

Others use `slices.fields_of`, `positions` and `runs.Run`.
"""
