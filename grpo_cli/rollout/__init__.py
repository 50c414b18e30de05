"""Sampling: engines, seeds, and the collection of a step's groups."""
