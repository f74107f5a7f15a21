"""When and how much the shards are asked: budgets, waits, rhythms."""
