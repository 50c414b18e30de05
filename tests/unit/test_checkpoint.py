"""Checkpoints: what a crash, a full disk or a changed byte may do to them, and what not."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from grpo_cli import checkpoint
from grpo_cli.checkpoint import CRASHPOINTS, crashpoint, json_line, latest, replace_file, save
from grpo_cli.errors import GrpoError


def _write(text: str):
    def write(folder: Path) -> None:
        (folder / "adapter").mkdir()
        (folder / "adapter" / "weights.bin").write_text(text)
        (folder / "optimizer.bin").write_text(text * 2)

    return write


def _save(run: Path, step: int, keep: int = 2) -> Path:
    return save(run, step, _write(f"w{step}"), {"step": step, "cursor": [1, None]}, keep)


def test_latest_is_what_was_saved(tmp_path: Path) -> None:
    assert latest(tmp_path) is None
    path = _save(tmp_path, 10)
    found = latest(tmp_path)
    assert found is not None
    assert (found.step, found.path) == (10, path)
    assert found.state == {"step": 10, "cursor": [1, None]}
    assert path == tmp_path / "checkpoints" / "step-000010"
    assert (tmp_path / "adapter" / "weights.bin").read_text() == "w10"
    assert not Path(os.readlink(tmp_path / "adapter")).is_absolute()


def test_the_newest_are_kept_and_leftovers_swept(tmp_path: Path) -> None:
    (tmp_path / "checkpoints" / ".tmp-step-000003").mkdir(parents=True)
    for step in (5, 10, 15):
        _save(tmp_path, step, keep=2)
    names = sorted(p.name for p in (tmp_path / "checkpoints").iterdir())
    assert names == ["step-000010", "step-000015"]
    assert (tmp_path / "adapter" / "weights.bin").read_text() == "w15"


def test_the_same_step_is_replaced(tmp_path: Path) -> None:
    _save(tmp_path, 5)
    save(tmp_path, 5, _write("again"), {}, keep=2)
    assert (tmp_path / "adapter" / "weights.bin").read_text() == "again"
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["step-000005"]


def test_a_failing_writer_leaves_the_old_checkpoint(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").write_text("x")
        raise RuntimeError("boom")

    _save(tmp_path, 5)
    with pytest.raises(RuntimeError, match="boom"):
        save(tmp_path, 10, fail, {}, keep=2)
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["step-000005"]


def test_a_state_that_is_not_json_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        save(tmp_path, 5, _write("w"), {"loss": float("nan")}, keep=2)
    assert latest(tmp_path) is None


FILES = ("adapter/weights.bin", "optimizer.bin", "state.json", "manifest.json")


@pytest.mark.parametrize("name", FILES)
def test_every_flipped_byte_is_found(tmp_path: Path, name: str) -> None:
    victim = _save(tmp_path, 10) / name
    whole = victim.read_bytes()
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 1
        victim.write_bytes(damaged)
        with pytest.raises(GrpoError) as caught:
            latest(tmp_path)
        assert caught.value.problems[0].code == "GR204"
        assert str(victim) in str(caught.value) or name == "manifest.json"
    victim.write_bytes(whole)
    assert latest(tmp_path) is not None


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["missing", "empty", "short", "link"])
def test_damage_names_the_file_and_the_way_back(tmp_path: Path, name: str, damage: str) -> None:
    _save(tmp_path, 5)
    victim = _save(tmp_path, 10) / name
    if damage == "missing":
        victim.unlink()
    elif damage == "empty":
        victim.write_bytes(b"")
    elif damage == "short":
        victim.write_bytes(victim.read_bytes()[:-1])
    else:
        victim.unlink()
        victim.symlink_to("/nowhere")
    with pytest.raises(GrpoError) as caught:
        latest(tmp_path)
    problem = caught.value.problems[0]
    assert caught.value.exit_code == 2
    assert problem.code == "GR204"
    assert str(victim) in problem.message
    assert problem.hint is not None
    assert "go on from step 5" in problem.hint
    assert "--restart" in problem.hint
    assert (tmp_path / "checkpoints" / "step-000010").exists()
    shutil.rmtree(tmp_path / "checkpoints" / "step-000010")
    found = latest(tmp_path)
    assert found is not None
    assert found.step == 5


def test_a_file_too_many_is_damage_and_a_damaged_older_one_is_no_way_back(tmp_path: Path) -> None:
    old, new = _save(tmp_path, 5), _save(tmp_path, 10)
    (new / "extra").write_text("x")
    (old / "manifest.json").unlink()
    with pytest.raises(GrpoError, match="extra") as caught:
        latest(tmp_path)
    hint = caught.value.problems[0].hint
    assert hint is not None
    assert "begin again" in hint
    assert str(old) in hint


def test_two_files_that_changed_places_are_found(tmp_path: Path) -> None:
    path = _save(tmp_path, 10)
    one, two = path / "optimizer.bin", path / "state.json"
    one.rename(path / "x")
    two.rename(one)
    (path / "x").rename(two)
    with pytest.raises(GrpoError):
        latest(tmp_path)


def test_another_steps_folder_under_this_name_is_found(tmp_path: Path) -> None:
    _save(tmp_path, 10).rename(tmp_path / "checkpoints" / "step-000020")
    with pytest.raises(GrpoError, match="manifest"):
        latest(tmp_path)


@pytest.mark.parametrize("step", [10, 5], ids=["next", "same"])
@pytest.mark.parametrize("point", [p for p in CRASHPOINTS if p.startswith("save-")])
def test_a_crash_anywhere_leaves_a_valid_checkpoint(tmp_path: Path, point: str, step: int) -> None:
    _save(tmp_path, 5)
    pid = os.fork()
    if pid == 0:
        try:
            os.environ["GRPO_CRASH_AT"] = point
            save(tmp_path, step, _write("new"), {"from": "child"}, keep=1)
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    hit = not (step == 10 and point == "save-aside")
    assert os.waitstatus_to_exitcode(status) == (-signal.SIGKILL if hit else 0)
    found = latest(tmp_path)
    assert found is not None
    committed = CRASHPOINTS.index(point) >= CRASHPOINTS.index("save-renamed")
    new = found.state == {"from": "child"}
    assert new == (committed or not hit)
    assert found.step == (step if new else 5)
    # The next save works and leaves nothing behind.
    _save(tmp_path, 20, keep=1)
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["step-000020"]


def test_a_crashpoint_can_wait_for_its_kth_call(monkeypatch: pytest.MonkeyPatch) -> None:
    killed = []
    monkeypatch.setattr(os, "kill", lambda pid, number: killed.append(number))
    monkeypatch.setenv("GRPO_CRASH_AT", "append-begin:2")
    monkeypatch.setattr(checkpoint, "_hits", checkpoint.Counter())
    crashpoint("append-begin")
    crashpoint("append-written")
    assert killed == []
    crashpoint("append-begin")
    assert killed == [signal.SIGKILL]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS])
@pytest.mark.parametrize("call", ["fsync", "replace", "rename"])
def test_a_disk_error_is_gr303_and_harms_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, call: str
) -> None:
    _save(tmp_path, 5)

    def fail(*args: object, **kwargs: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(GrpoError) as caught:
            _save(tmp_path, 10, keep=1)
    assert caught.value.exit_code == 3
    assert caught.value.problems[0].code == "GR303"
    assert caught.value.problems[0].hint
    found = latest(tmp_path)
    assert found is not None
    assert found.step == (10 if call == "replace" else 5)


def test_a_full_disk_that_a_tensor_writer_hides_is_gr303(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(folder: Path) -> None:
        raise RuntimeError("PytorchStreamWriter failed writing file")

    usage = shutil.disk_usage(tmp_path)._replace(free=0)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(GrpoError, match="GR303"):
        save(tmp_path, 5, write, {}, keep=1)


def test_replace_file_keeps_the_old_one_when_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "f"
    replace_file(path, b"old")

    def fail(fd: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(GrpoError, match="GR303"):
        replace_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_a_real_full_disk(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no right to mount a small disk")
    try:
        _save(disk, 5)

        def big(folder: Path) -> None:
            (folder / "big").write_bytes(b"x" * 2**20)

        with pytest.raises(GrpoError, match="GR303"):
            save(disk, 10, big, {}, keep=1)
        found = latest(disk)
        assert found is not None
        assert found.step == 5
        _save(disk, 10)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_json_has_no_nan() -> None:
    line = json_line({"a": float("nan"), "b": [float("inf"), 1.5], "c": (-float("inf"),)})
    assert json.loads(line) == {"a": None, "b": [None, 1.5], "c": [None]}
    assert line.endswith(b"\n")
