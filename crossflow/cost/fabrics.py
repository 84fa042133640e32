"""placeholder until the measured fabrics are in."""
def fabric_time(*a, **k):
    raise NotImplementedError
