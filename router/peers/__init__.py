"""The other workers of the same router, as one worker reaches them."""
