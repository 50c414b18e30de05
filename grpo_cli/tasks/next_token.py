"""Reinforcement pre-training: the questions are places in a text where its next token is unsure.

A document is cut into pieces of `context_tokens` tokens. A position is the end of one of a piece's
tokens: its context is the piece up to there, its gold the tokens that follow in the document. The
proxy's entropy is measured with exactly that context. Source: RPT, arXiv:2506.08007.

Held-out positions are in other documents than the training ones; training documents that stand in
the held-out text too, and training positions with the context of a held-out one, are left out.
Must not import torch at module level.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_cli.errors import error
from grpo_cli.policy.source import model_fingerprint, model_path
from grpo_cli.recipe.schema import Model
from grpo_cli.recipe.task_schema import NextTokenTask, TextModel
from grpo_cli.seeds import seed63
from grpo_cli.tasks.proxy_entropy import entropies, text_tokens
from grpo_cli.tasks.wording import content_key, turns
from grpo_cli.tiny import TINY_TEXT
from grpo_cli.types import Prompt

_SUFFIXES = (".txt", ".md", ".text", ".jsonl")


@dataclass(frozen=True, slots=True)
class Position:
    """A place in a document.

    Example:
        Position("14+9=", "23;23+", (1, 2, 3, 4, 5, 6), 1.21, "text.txt, document 7")
    """

    context: str
    continuation: str
    ends: tuple[int, ...]
    """Bytes of the continuation up to the end of each of its tokens."""
    entropy: float
    """Of the proxy's next token, in nats."""
    where: str

    @property
    def id(self) -> str:
        """A hash of context and continuation."""
        content = f"next_token\n{self.context}\0{self.continuation}\0{self.ends}"
        return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()[:16]

    def reference(self, marker: str | None) -> str:
        """The continuation and its token ends, as the verifier `next_token` reads them."""
        fields: dict[str, Any] = {"text": self.continuation, "ends": self.ends}
        return json.dumps(fields | ({"marker": marker} if marker else {}), ensure_ascii=False)


class NextToken:
    """A `Task` of positions."""

    def __init__(
        self, settings: NextTokenTask, train: Sequence[Position], held_out: Sequence[Position]
    ) -> None:
        self.settings = settings
        self.size = len(train)
        self.train_rows = tuple(train)
        self.held_out_rows = tuple(held_out)
        self._by_id = {position.id: position for position in (*train, *held_out)}

    def train(self, index: int) -> Prompt:
        """The training prompt at `index`, 0 <= index < size. Raises IndexError outside."""
        if not 0 <= index < self.size:
            raise IndexError(f"train index {index} is not in 0..{self.size - 1}")
        return self.prompt(self.train_rows[index])

    def held_out(self, n: int) -> tuple[Prompt, ...]:
        """The first `n` held-out prompts, one of every document before a second of any.

        Raises:
            GrpoError: GR205 when there are fewer than `n`.
        """
        if n > len(self.held_out_rows):
            raise error(
                "GR205",
                f"the next_token task has only {len(self.held_out_rows)} held-out positions with "
                f"an entropy above {self.settings.threshold:g}, {n} were asked for",
                hint="lower eval.num_questions or task.min_entropy, or raise task.held_out_frac",
            )
        return tuple(self.prompt(position) for position in self.held_out_rows[:n])

    def position(self, prompt_id: str) -> Position:
        """The position that a prompt asks about. Raises KeyError for another task's prompt."""
        return self._by_id[prompt_id]

    def prompt(self, position: Position) -> Prompt:
        """A position as the recipe words it."""
        return Prompt(
            id=position.id,
            messages=turns(position.context, self.settings.template, self.settings.system),
            reference=position.reference("#" if self.settings.answer == "marker" else None),
            task="next_token",
            meta={"where": position.where, "entropy": position.entropy},
        )


@dataclass(frozen=True, slots=True)
class Document:
    """A text and where it stands, for people."""

    text: str
    where: str


def load_next_token(settings: NextTokenTask, *, train: bool = True) -> NextToken:
    """Read and split the text, and choose its positions.

    Args:
        train: False leaves the training text unread by the proxy; `size` is then 0.

    Raises:
        GrpoError: GR205 when the text cannot be read or has no position, GR201 when the proxy or
            the tokenizer cannot be loaded.
    """
    proxy, tokenizer = _model_of(settings.proxy), _tokenizer(_model_of(settings.tokenizer))
    documents, held_out_documents = split_documents(settings)
    held_out = [
        position
        for rank, position in sorted(
            _ranked(positions(held_out_documents, settings, tokenizer, proxy)),
            key=lambda pair: (pair[0], pair[1].id),
        )
    ]
    if not train:
        return NextToken(settings, (), held_out)
    taken = {position.context for position in held_out}
    found = [
        position
        for position in _distinct(positions(documents, settings, tokenizer, proxy))
        if position.context not in taken
    ]
    if not found:
        raise error(
            "GR205",
            f"no position of `{settings.path}` has an entropy above {settings.threshold:g} nats",
            hint="lower task.min_entropy or task.min_context_tokens, or give more text",
        )
    return NextToken(settings, found, held_out)


def positions(
    documents: Sequence[Document], settings: NextTokenTask, tokenizer: Any, proxy: TextModel
) -> list[Position]:
    """The positions whose entropy is above the threshold, in the order of the text."""
    pieces = [piece for document in documents for piece in _pieces(document, settings, tokenizer)]
    measured = entropies([piece.text for piece in pieces], proxy, settings.top_k)
    return [
        position
        for piece, entropy_of in zip(pieces, measured, strict=True)
        for position in piece.positions(settings, entropy_of)
    ]


@dataclass(frozen=True, slots=True)
class _Piece:
    """A stretch of a document; `ends` are those of the document's tokens after its start."""

    document: Document
    begin: int
    text: str
    ends: tuple[int | None, ...]
    num_tokens: int
    """Tokens of the piece; the rest of `ends` belongs to the document after it."""

    def positions(self, settings: NextTokenTask, entropy_of: Any) -> Iterator[Position]:
        whole = self.document.text
        for k in range(settings.min_context_tokens, min(self.num_tokens, len(self.ends) - 1) + 1):
            at = self.ends[k - 1]
            if at is None or entropy_of.get(at - self.begin, 0.0) <= settings.threshold:
                continue
            follows = self.ends[k : k + settings.continuation_tokens]
            ends = [end for end in follows if end is not None and end > at]
            if ends:
                yield Position(
                    context=whole[self.begin : at],
                    continuation=whole[at : ends[-1]],
                    ends=tuple(len(_bytes(whole[at:end])) for end in ends),
                    entropy=entropy_of[at - self.begin],
                    where=self.document.where,
                )


def _pieces(document: Document, settings: NextTokenTask, tokenizer: Any) -> Iterator[_Piece]:
    _, ends = text_tokens(tokenizer, document.text)
    first = 0
    while first < len(ends):
        begin = 0 if first == 0 else ends[first - 1]
        if begin is None:  # inside a character: begin at the next token
            first += 1
            continue
        last = min(first + settings.context_tokens, len(ends))
        while last > first and ends[last - 1] is None:
            last -= 1
        end = ends[last - 1] if last > first else None
        if end is None:
            return
        text = document.text[begin:end]
        yield _Piece(document, begin, text, tuple(ends[first:]), last - first)
        first = last


def split_documents(settings: NextTokenTask) -> tuple[list[Document], list[Document]]:
    """Training documents and held-out ones, no content in both, none twice.

    Raises:
        GrpoError: GR205 when the text cannot be read, or leaves nothing on one side.
    """
    documents = _unique(read_documents(settings.path, settings, "task.path"))
    if settings.eval_path is not None:
        held_out = _unique(read_documents(settings.eval_path, settings, "task.eval_path"))
    elif len(documents) == 1:
        (only,) = documents
        at = int(len(only.text) * (1 - settings.held_out_frac))
        documents = [Document(only.text[:at], f"{only.where}, its beginning")]
        held_out = [Document(only.text[at:], f"{only.where}, its end")]
    else:
        held_out = [d for d in documents if _is_held_out(d, settings)]
    outside = {content_key(document.text) for document in held_out}
    documents = [d for d in documents if content_key(d.text) not in outside]
    if not documents or not held_out:
        side = "held-out" if documents else "training"
        raise error(
            "GR205",
            f"the text of `{settings.path}` leaves no {side} document",
            hint="change task.held_out_frac, or name other text in task.eval_path",
        )
    return documents, held_out


def read_documents(path: str, settings: NextTokenTask, key: str) -> list[Document]:
    """The documents of a file or folder, blank ones left out.

    Raises:
        GrpoError: GR205 when there is no such file, it is not UTF-8, a row has no text, or there is
            no document at all.
    """
    place = TINY_TEXT if path == "tiny" else Path(path).expanduser()
    if place.is_dir():
        files = sorted(f for f in place.rglob("*") if f.suffix in _SUFFIXES and f.is_file())
    elif place.is_file():
        files = [place]
    else:
        raise error("GR205", f"no file or folder `{path}` ({key})", hint=f"--set {key}=FILE")
    documents = [d for file in files for d in _read_file(file, settings) if d.text.strip()]
    if not documents:
        raise error(
            "GR205",
            f"no text in `{path}` ({key})",
            hint=f"files that are read in a folder: *{', *'.join(_SUFFIXES)}",
        )
    return documents


def text_fingerprint(settings: NextTokenTask) -> str:
    """SHA-256 (hex) of the text's files and of the models that read it. Reads files, not the hub.

    Raises:
        GrpoError: GR205 as `read_documents`.
    """
    digest = hashlib.sha256()
    for key in ("path", "eval_path"):
        path = getattr(settings, key)
        if path is not None:
            for document in read_documents(path, settings, f"task.{key}"):
                digest.update(hashlib.sha256(_bytes(document.text)).digest())
        digest.update(b"\n")
    for model in (settings.proxy, settings.tokenizer):
        chosen = _model_of(model)
        digest.update(model_fingerprint(Model(id=chosen.id, revision=chosen.revision)).encode())
    return digest.hexdigest()


def _read_file(file: Path, settings: NextTokenTask) -> Iterator[Document]:
    try:
        text = file.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise error(
            "GR205", f"cannot read {file}: {problem}", hint="text files must be UTF-8"
        ) from None
    if file.suffix != ".jsonl":
        parts = [text] if settings.separator is None else text.split(settings.separator)
        for number, part in enumerate(parts, start=1):
            yield Document(part, f"{file.name}, document {number}")
        return
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        content = row.get(settings.column) if isinstance(row, dict) else None
        if not isinstance(content, str):
            raise error(
                "GR205",
                f"{file}, line {number}: no text in the column `{settings.column}`",
                hint="one JSON object a line; --set task.column=NAME for another column",
            )
        yield Document(content, f"{file.name}, line {number}")


def _unique(documents: Sequence[Document]) -> list[Document]:
    """The first document of every content."""
    first: dict[str, Document] = {}
    for document in documents:
        first.setdefault(content_key(document.text), document)
    return list(first.values())


def _is_held_out(document: Document, settings: NextTokenTask) -> bool:
    draw = seed63(settings.split_seed, "held_out", content_key(document.text))
    return draw < settings.held_out_frac * 2**63


def _distinct(found: Sequence[Position]) -> list[Position]:
    """The first position of every context and continuation."""
    return list({position.id: position for position in reversed(found)}.values())[::-1]


def _ranked(found: Sequence[Position]) -> Iterator[tuple[int, Position]]:
    """Every distinct position with its rank in its document, in an order made from content."""
    seen: dict[str, int] = {}
    for position in sorted(_distinct(found), key=lambda position: position.id):
        rank = seen.get(position.where, 0)
        seen[position.where] = rank + 1
        yield rank, position


def _model_of(model: TextModel | None) -> TextModel:
    """A recipe fills in its own model; a task on its own must name one."""
    if model is None:
        raise error(
            "GR205",
            "a next_token task without a recipe does not know which model reads its text",
            hint="name a setup or a recipe, or set task.proxy and task.tokenizer",
        )
    return model


def _tokenizer(model: TextModel) -> Any:
    from transformers import AutoTokenizer

    from grpo_cli.hub import hub_or_cache

    path = model_path(Model(id=model.id, revision=model.revision))
    try:
        with hub_or_cache():
            tokenizer = AutoTokenizer.from_pretrained(path, revision=model.revision)
    except (OSError, ValueError) as problem:
        first_line = next(iter(str(problem).splitlines()), type(problem).__name__)
        raise error(
            "GR201",
            f"the tokenizer of `{model.id}` is not here: {first_line}",
            hint="pass a local folder: --set task.tokenizer.id=DIR",
        ) from None
    if not tokenizer.is_fast:
        raise error(
            "GR201",
            f"the tokenizer of `{model.id}` does not say where its tokens stand in the text",
            hint="use a model with a tokenizer.json",
        )
    return tokenizer


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
