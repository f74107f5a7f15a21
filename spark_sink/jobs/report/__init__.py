"""What a job tells while it runs, and what others ask about it."""
