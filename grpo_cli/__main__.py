"""`python -m grpo_cli`."""

from grpo_cli.cli.app import main

main()
