"""`VerifierSource`: what a worker process needs to load a verifier again. Must not import torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Literal

SourceKind = Literal["folder", "function", "trl", "verl"]


@dataclass(frozen=True, slots=True)
class VerifierSource:
    """Where a verifier's code is and with which options it runs.

    Example:
        VerifierSource(kind="folder", target="/.../verifiers/math", function="verify",
                       name="math", sha256="9f2c...", options={"percent": "strict"})
    """

    kind: SourceKind
    target: str
    """The folder, the `.py` file (both absolute), or the dotted name of an importable module."""
    function: str
    name: str
    """For people: the folder's name, or `stem:function`."""
    sha256: str
    """Of all `*.py` of a folder, or of the one file of a function (hex)."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Every option with its value, the defaults filled in, sorted by name."""

    def to_json(self) -> str:
        """One line that `from_json` reads back in another process."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> VerifierSource:
        """The source that `to_json` wrote."""
        return cls(**json.loads(text))
