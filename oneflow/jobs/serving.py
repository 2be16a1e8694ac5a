"""placeholder while the rest is tried"""
def serve(*a): raise SystemExit(1)
