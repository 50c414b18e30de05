"""The base model, its named LoRA adapters, and the log-probabilities of completions."""
