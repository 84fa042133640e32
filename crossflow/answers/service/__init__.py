"""Answers of a service that was replayed: figures of its requests with their confidence, over time, money and energy, pictures."""
