"""The tiny base model that ships with the package, and the script that builds it."""

from pathlib import Path

TINY_DIR = Path(__file__).parent
"""A folder that `AutoModelForCausalLM` and `AutoTokenizer` load without a network."""

TINY_MAX_TOKENS = 48
"""The completion limit that the model was built for, the end-of-turn token included."""

TINY_TEXT = TINY_DIR / "text.txt"
"""Text that the tiny model can read, one document a line (made by `grpo_cli.tiny.text`)."""
