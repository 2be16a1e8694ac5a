"""The scheduler of a cluster as a service: gRPC, storage, metrics around the pure job table."""
