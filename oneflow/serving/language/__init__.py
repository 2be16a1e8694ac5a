"""Language models: their weights, a cache in blocks, and steps over tokens of many sequences."""
