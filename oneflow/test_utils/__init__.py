"""`flow.test_utils`: tests of ops against PyTorch, by upstream's names."""
