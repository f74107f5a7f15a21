"""Jobs under random writes and faults, by seed, and what their tables then lack."""
