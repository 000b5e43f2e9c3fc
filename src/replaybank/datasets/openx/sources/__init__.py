"""Origins of episodes: each gives shards, and the episodes in them."""
