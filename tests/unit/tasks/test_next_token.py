"""The next_token task: documents, positions, their split, and accuracy without reasoning."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from grpo_cli.errors import GrpoError
from grpo_cli.next_token_direct import direct_accuracy, direct_hits
from grpo_cli.policy.policy import load_policy
from grpo_cli.recipe.load import load
from grpo_cli.recipe.schema import Model
from grpo_cli.recipe.task_schema import NextTokenTask, TextModel
from grpo_cli.tasks import load_task, task_fingerprint
from grpo_cli.tasks import proxy_entropy as measured
from grpo_cli.tasks.next_token import NextToken, Position, split_documents
from grpo_cli.tasks.proxy_entropy import text_tokens
from grpo_cli.tasks.wording import content_key
from grpo_cli.tiny import TINY_DIR, TINY_TEXT
from grpo_cli.tiny.text import documents
from grpo_cli.types import Status

TINY = TextModel(id="tiny")
LINES = TINY_TEXT.read_text().splitlines()


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    cache = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    return cache


def settings(path: Path | str, **fields: object) -> NextTokenTask:
    tree = {"path": str(path), "separator": "\n", "proxy": TINY, "tokenizer": TINY, **fields}
    return NextTokenTask(**tree)  # type: ignore[arg-type]


def write(folder: Path, lines: list[str], name: str = "text.txt") -> Path:
    file = folder / name
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return file


def loaded(chosen: NextTokenTask, **options: bool) -> NextToken:
    task = load_task(chosen, **options)
    assert isinstance(task, NextToken)
    return task


def everything(task: NextToken) -> set[Position]:
    return {*task.train_rows, *task.held_out_rows}


def test_the_shipped_text_is_what_its_script_makes() -> None:
    assert documents() == LINES
    assert len({line.split("=")[0] for line in LINES}) == len(LINES), "a first sum stands twice"
    assert TINY_TEXT.stat().st_size < 200_000
    tokenizer = AutoTokenizer.from_pretrained(TINY_DIR)
    assert tokenizer.unk_token_id not in tokenizer("".join(LINES))["input_ids"]
    for line in LINES:
        for equation in line.removesuffix(".").split(";"):
            left, result = equation.split("=")
            assert eval(left) == int(result)


def test_positions_against_an_independent_computation(tmp_path: Path) -> None:
    """One forward pass per context, without padding or batches, and the entropy in plain Python."""
    lines = LINES[:8]
    task = loaded(settings(write(tmp_path, lines), split="medium", held_out_frac=0.3))
    model = AutoModelForCausalLM.from_pretrained(TINY_DIR, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(TINY_DIR)
    want = {}
    for line in lines:
        for at in range(1, len(line)):
            ids = torch.tensor([tokenizer(line[:at])["input_ids"]])
            with torch.no_grad():
                probs = torch.softmax(model(input_ids=ids).logits[0, -1].double(), -1).tolist()
            top = sorted(probs, reverse=True)[:16]
            top = [p / sum(top) for p in top]
            entropy = -sum(p * math.log(p) for p in top)
            assert abs(entropy - 1.0) > 2e-4, "too near to the threshold for this comparison"
            if entropy > 1.0:
                want[line[:at], line[at : at + 16]] = entropy
    found = {(p.context, p.continuation): p.entropy for p in everything(task)}
    assert found.keys() == want.keys()
    assert found == pytest.approx(want, abs=2e-4)


def test_a_harder_split_is_a_part_of_an_easier_one(tmp_path: Path) -> None:
    file = write(tmp_path, LINES[:40])
    tasks = [loaded(settings(file, split=split)) for split in ("easy", "medium", "hard")]
    sets = [{p.id for p in everything(task)} for task in tasks]
    assert sets[0] > sets[1] > sets[2] > set()
    for task, least in zip(tasks, (0.5, 1.0, 1.5), strict=True):
        assert min(p.entropy for p in everything(task)) > least
    custom = loaded(settings(file, split="hard", min_entropy=1.0))
    assert {p.id for p in everything(custom)} == sets[1]


def test_training_and_held_out_share_no_document_and_no_context(tmp_path: Path) -> None:
    # The same line twice, once with other spacing; and lines with a common beginning.
    lines = [*LINES[:60], LINES[0], f" {LINES[1]} ", *(f"1+1=2;{line}" for line in LINES[:30])]
    chosen = settings(write(tmp_path, lines), held_out_frac=0.3)
    train_documents, held_out_documents = split_documents(chosen)
    keys = [{content_key(d.text) for d in side} for side in (train_documents, held_out_documents)]
    assert not keys[0] & keys[1]
    assert len(train_documents) + len(held_out_documents) == 90
    task = loaded(chosen)
    contexts = [{p.context for p in side} for side in (task.train_rows, task.held_out_rows)]
    assert not contexts[0] & contexts[1]
    assert any(p.context.startswith("1+1=2;") for p in task.train_rows)
    # Which side a document is on depends on its text alone, not on the file's order.
    again = split_documents(settings(write(tmp_path, lines[::-1], "b.txt"), held_out_frac=0.3))
    assert {content_key(d.text) for d in again[1]} == keys[1]


def test_training_text_that_stands_in_the_eval_text_is_left_out(tmp_path: Path) -> None:
    file, other = write(tmp_path, LINES[:20]), write(tmp_path, LINES[15:30], "eval.txt")
    task = loaded(settings(file, eval_path=str(other)))
    for rows, own in ((task.train_rows, LINES[:15]), (task.held_out_rows, LINES[15:30])):
        assert rows
        assert all(any((p.context + p.continuation) in line for line in own) for p in rows)


def test_one_document_is_held_out_from_its_end(tmp_path: Path) -> None:
    text = ";".join(line.removesuffix(".") for line in LINES[:40])
    file = write(tmp_path, [text])
    task = loaded(settings(file, separator=None, held_out_frac=0.25, context_tokens=32))
    at = int((len(text) + 1) * 0.75)
    assert all(p.context + p.continuation in text[:at] for p in task.train_rows)
    assert all(p.context + p.continuation in text[at:] + "\n" for p in task.held_out_rows)
    assert max(len(p.context) for p in everything(task)) == 32


def test_prompts_are_the_same_on_every_call_and_from_the_cache(tmp_path: Path) -> None:
    chosen = settings(write(tmp_path, LINES[:60]), template="Go on: {question}", system="Be brief.")
    first, second = loaded(chosen), loaded(chosen)
    assert [first.train(i) for i in range(first.size)] == [
        second.train(i) for i in range(second.size)
    ]
    held_out = first.held_out(6)
    assert held_out == second.held_out(6) == loaded(chosen, train=False).held_out(6)
    prompt = held_out[0]
    position = first.position(prompt.id)
    assert [(m.role, m.content) for m in prompt.messages] == [
        ("system", "Be brief."),
        ("user", f"Go on: {position.context}"),
    ]
    plain = loaded(chosen.model_copy(update={"template": "{question}", "system": None}))
    assert [p.id for p in plain.held_out(6)] == [p.id for p in held_out]
    gold = json.loads(prompt.reference)
    assert gold["text"] == position.continuation
    assert gold["ends"] == list(range(1, len(position.continuation) + 1))
    assert "marker" not in gold
    marked = loaded(chosen.model_copy(update={"answer": "marker"})).held_out(6)
    assert json.loads(marked[0].reference) == {**gold, "marker": "#"}
    assert [p.id for p in marked] == [p.id for p in held_out]
    with pytest.raises(IndexError):
        first.train(first.size)
    with pytest.raises(GrpoError, match="only"):
        first.held_out(10_000)


def test_every_held_out_document_is_asked_once_before_any_is_asked_twice(tmp_path: Path) -> None:
    task = loaded(settings(write(tmp_path, LINES[:60]), held_out_frac=0.3))
    where = [p.where for p in task.held_out_rows]
    distinct = len(set(where))
    assert distinct > 10
    assert len(set(where[:distinct])) == distinct


def test_the_proxy_reads_a_text_once(tmp_path: Path, own_cache: Path) -> None:
    chosen = settings(write(tmp_path, LINES[:20]))
    loaded(chosen)
    files = sorted((own_cache / "grpo" / "entropy").glob("*.json"))
    assert len(files) == 2, "one for the training text, one for the held-out text"
    changed = files[0].read_bytes().replace(b"0.", b"1.")
    files[0].write_bytes(changed)
    files[1].write_bytes(b"{")  # damaged: measured again
    third = loaded(chosen)
    assert files[0].read_bytes() == changed, "the cache was not used"
    assert json.loads(files[1].read_bytes())
    assert third.size


def test_the_cache_knows_the_proxy_and_the_settings(tmp_path: Path, own_cache: Path) -> None:
    texts = LINES[:3]
    sixteen = measured.entropies(texts, TINY, 16)
    two = measured.entropies(texts, TINY, 2)
    assert max(max(one.values()) for one in two) <= math.log(2) < max(sixteen[0].values())
    assert len(list((own_cache / "grpo" / "entropy").glob("*.json"))) == 2


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token per byte, so that characters beyond ASCII are several tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=inner)


def test_a_border_inside_a_character_is_none() -> None:
    ids, ends = text_tokens(byte_tokenizer(), "aé🙂b")
    assert len(ids) == len("aé🙂b".encode()) == 8
    assert ends == [1, None, 2, None, None, None, 3, 4]


def test_text_of_several_bytes_a_character(tmp_path: Path) -> None:
    byte_tokenizer().save_pretrained(tmp_path / "bytes")
    file = write(tmp_path, ["1é2🙂3中4=" * 3, "9🙂8é7=6" * 3, "é+é=🙂" * 4])
    task = loaded(
        settings(
            file,
            tokenizer=TextModel(id=str(tmp_path / "bytes")),
            min_entropy=0.0,
            continuation_tokens=4,
            held_out_frac=0.5,
            split_seed=1,
        )
    )
    assert everything(task)
    for position in everything(task):
        gold = position.continuation.encode()
        assert position.ends[-1] == len(gold) <= 4
        starts = [len(position.continuation[:k].encode()) for k in range(1, len(gold) + 1)]
        assert set(position.ends) <= set(starts)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    bad = tmp_path / "bad.txt"
    bad.write_bytes(b"\xff\xfe")
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"text": "1+1=2"}\n{"body": "x"}\n')
    (tmp_path / "empty").mkdir()
    for path, said in (
        (bad, "bad.txt"),
        (rows, "line 2"),
        (tmp_path / "empty", "no text"),
        (tmp_path / "none", "no file"),
    ):
        with pytest.raises(GrpoError, match=said):
            load_task(settings(path))
    with pytest.raises(GrpoError, match="above 50"):
        load_task(settings(write(tmp_path, LINES[:9]), min_entropy=50.0, held_out_frac=0.4))
    with pytest.raises(GrpoError, match="which model"):
        load_task(NextTokenTask(path="tiny"))


def test_a_folder_and_a_jsonl_column(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    write(folder, LINES[:10], "a.txt")
    body = "".join(json.dumps({"body": line}) + "\n" for line in LINES[10:20])
    (folder / "b.jsonl").write_text(body)
    sides = split_documents(settings(folder, column="body", held_out_frac=0.3))
    assert {d.text for side in sides for d in side} == set(LINES[:20])


def test_a_recipe_lends_its_model_unless_the_task_names_one() -> None:
    task = load("rpt").recipe.task
    assert isinstance(task, NextTokenTask)
    assert task.proxy == task.tokenizer == TINY
    other = load("rpt", sets=["model.id=DIR", "model.revision=abc"]).recipe.task
    assert isinstance(other, NextTokenTask)
    assert other.proxy == other.tokenizer == TextModel(id="DIR", revision="abc")
    named = load("rpt", sets=["model.id=DIR", "task.proxy.id=tiny"]).recipe.task
    assert isinstance(named, NextTokenTask)
    assert (named.proxy, named.tokenizer) == (TINY, TextModel(id="DIR"))
    with pytest.raises(GrpoError, match="min_context_tokens"):
        load("rpt", sets=["task.context_tokens=4"])


def test_the_fingerprint_follows_the_text_and_the_proxy(tmp_path: Path) -> None:
    chosen = settings(write(tmp_path, LINES[:5]))
    before = task_fingerprint(chosen)
    assert task_fingerprint(chosen.model_copy(update={"proxy": TextModel(id="a/b")})) != before
    write(tmp_path, LINES[:6])
    assert task_fingerprint(chosen) != before


def test_the_module_is_importable_without_torch() -> None:
    code = "import sys, grpo_cli.tasks.next_token; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_verifier_accepts_every_gold_of_the_shipped_setup() -> None:
    from grpo_cli.recipe.locate import verifiers_dir
    from grpo_cli.verify.load import load_verifier

    recipe = load("rpt").recipe
    verifier = load_verifier(recipe.verifier.name, verifiers_dir(), recipe.verifier.options)
    task = load_task(recipe.task, train=False)
    for prompt in task.held_out(recipe.eval.num_questions):
        position = task.position(prompt.id)  # type: ignore[attr-defined]
        verdict = verifier(f"1+1=2#{position.continuation[:1]}", prompt.reference)
        assert (verdict.status, verdict.score) == (Status.OK, 1.0)
        assert verifier(f"#{position.continuation}?", prompt.reference).score == 0


def test_direct_accuracy_against_an_independent_computation(tmp_path: Path, policy) -> None:
    task = loaded(settings(write(tmp_path, LINES[:60]), min_entropy=0.2, held_out_frac=0.4))
    prompts = task.held_out(100)
    model = AutoModelForCausalLM.from_pretrained(TINY_DIR, dtype=torch.float32)
    want = []
    for prompt in prompts:
        position = task.position(prompt.id)
        ids = policy.tokenizer(position.context, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            said = model(input_ids=ids).logits[0, -1].argmax().item()
        want.append(policy.tokenizer.decode([said]) == position.continuation[0])
    assert direct_hits(policy, None, task, prompts) == want
    assert 0 < sum(want) < 100
    found = direct_accuracy(policy, None, task, prompts)
    assert (found.mean, found.n) == (sum(want) / 100, 100)
    assert found.low < found.mean < found.high
    changed = direct_hits(policy, "arm0", task, prompts)
    assert changed != want, "an adapter that was changed says the same everywhere"
    assert direct_hits(load_policy(Model(id="tiny"), "cpu"), None, task, prompts) == want
