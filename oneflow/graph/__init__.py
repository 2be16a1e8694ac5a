"""nn.Graph: trace once, compile, run many times."""
