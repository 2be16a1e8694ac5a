"""Jobs of a cluster: what is known of them, what is to be done next, and how it survives."""
