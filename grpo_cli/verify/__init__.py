"""Verifiers: loading, running and auditing them. Must not import torch."""
