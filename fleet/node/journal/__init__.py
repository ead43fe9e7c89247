"""The node's journal: its durable truth, one owner at a time, set aside when in doubt."""
