"""Running merged streams: remote cursors, budgets, wait times, sharing."""
