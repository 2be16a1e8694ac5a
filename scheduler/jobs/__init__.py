"""Jobs of a cluster: the knowledge of them, the next actions, and how both survive."""
