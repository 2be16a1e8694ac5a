"""Things around training: data loading."""
