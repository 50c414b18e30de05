"""How a question is put: the turns of a prompt, and the identity of a question without them."""

from __future__ import annotations

import hashlib
import unicodedata

from grpo_cli.recipe.task_schema import PLACE
from grpo_cli.types import Message


def turns(
    question: str | tuple[Message, ...], template: str, system: str | None
) -> tuple[Message, ...]:
    """The chat that asks `question`.

    Of a question that is a chat already, the template words the last user turn, and `system` stands
    in for a system turn of its own.
    """
    if isinstance(question, str):
        question = (Message("user", question),)
    last = max((i for i, m in enumerate(question) if m.role == "user"), default=-1)
    worded = tuple(
        # Not str.format: questions and templates are full of braces.
        Message(m.role, template.replace(PLACE, m.content)) if i == last else m
        for i, m in enumerate(question)
    )
    if system is None:
        return worded
    return (Message("system", system), *(m for m in worded if m.role != "system"))


def question_text(question: str | tuple[Message, ...]) -> str:
    """The words of a question, for comparing: what the user says last."""
    if isinstance(question, str):
        return question
    said = [m.content for m in question if m.role == "user"]
    return said[-1] if said else ""


def content_key(question: str | tuple[Message, ...]) -> str:
    """SHA-256 (hex) of what is asked; case, spacing and Unicode variants do not count."""
    if isinstance(question, str):
        text = question
    else:
        text = "\n".join(m.content for m in question if m.role != "system")
    plain = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    return hashlib.sha256(plain.encode("utf-8", "surrogatepass")).hexdigest()
