"""Recipes: typed, closed, hashed data. Must not import torch."""
