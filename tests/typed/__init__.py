"""Programs of users with type annotations, which `make types` checks beside the package."""
