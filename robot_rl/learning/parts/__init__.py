"""Parts of agents: critics, heads, targets, objectives, exploration."""
