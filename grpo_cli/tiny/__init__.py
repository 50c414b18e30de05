"""The tiny base models that ship with the package, and the scripts that build them."""

from pathlib import Path

TINY_DIR = Path(__file__).parent
"""A folder that `AutoModelForCausalLM` and `AutoTokenizer` load without a network."""

TINY_JUDGE_DIR = TINY_DIR / "judge_model"
"""The same for `tiny-judge`: it ends its answers with a verdict on them (`grpo_cli.tiny.judge`)."""

TINY_MAX_TOKENS = 48
"""The completion limit that the model was built for, the end-of-turn token included."""

TINY_TEXT = TINY_DIR / "text.txt"
"""Text that the tiny model can read, one document a line (made by `grpo_cli.tiny.text`)."""
