"""`Node`: the base of everything a person writes in a recipe. Must not import torch."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Node(BaseModel):
    """A closed, frozen, strict mapping: an unknown key is an error, and `"3"` is not 3."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        validate_default=True,
    )
