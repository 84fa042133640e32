"""Architectures: generated from technology and budgets, or read off datasheets."""
