"""Tasks: a name becomes a stream of prompts. Must not import torch."""
