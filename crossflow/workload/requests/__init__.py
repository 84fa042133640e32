"""Requests of a service: when they arrive, how long they are, which of them follow others, and what they share.

`record` holds them as arrays, whatever they came from.
"""
