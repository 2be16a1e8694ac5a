"""Functions of tensors that run as compiled plans: one forward, and one for their gradients."""
