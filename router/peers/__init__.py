"""Access of one worker to the other workers of the same router."""
