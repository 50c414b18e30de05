"""The audit of a verifier: what it accepts and refuses, measured before it pays a single reward.

Each module is one check over `ask(pairs) -> verdicts`; `battery.py` runs them all. Must not import
torch.
"""
