"""A service by events: requests through the schedulers of serving engines, jump by jump.

`steps` are tables of what steps take, `policies` what engines do differently, `cache` the blocks that prompts share, `replica` one engine,
`fleet` several of them behind a router, and `replayed` what comes out.
"""
