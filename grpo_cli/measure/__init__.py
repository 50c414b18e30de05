"""`grpo eval`: what one checkpoint scores on held-out questions, and how sure that is.

A statement about checkpoints, never about a method: that needs several training seeds, which is
what `grpo compare` is for. Must not import torch at module level.
"""
