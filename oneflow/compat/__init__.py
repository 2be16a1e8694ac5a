"""Names of PyTorch and of upstream that programs ask for and nothing in here needs.

No module outside imports from here: the public table (oneflow/api), oneflow/paths.py and the finder
of mock_torch name these modules, which are imported when a program first asks for one.
"""
