"""`flow.one_embedding`: embedding tables larger than memory."""
