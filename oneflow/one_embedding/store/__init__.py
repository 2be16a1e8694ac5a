"""Rows by id: in memory or on a disk behind a cache, created on their first look-up."""
