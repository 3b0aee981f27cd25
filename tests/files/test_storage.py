"""Files and folders are written whole or not at all."""

import errno
import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer

import pytest

from umpteen.errors import BadInput, InUse, NotSaved
from umpteen.files.storage import atomic_folder, locked_file, open_workspace, sha256_of, write_atomically


def fail_with_full_disk(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_file_is_replaced_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    file = tmp_path / "new folder" / "file"
    write_atomically(file, "old")
    write_atomically(file, "nëw".encode())
    assert file.read_text(encoding="utf-8") == "nëw"
    assert list(file.parent.iterdir()) == [file]


def test_files_have_the_rights_that_the_umask_gives(tmp_path: Path) -> None:
    write_atomically(tmp_path / "ours", "x")
    with atomic_folder(tmp_path / "our folder"):
        pass
    (tmp_path / "theirs").write_text("x")
    (tmp_path / "their folder").mkdir()
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "theirs").stat().st_mode
    assert (tmp_path / "our folder").stat().st_mode == (tmp_path / "their folder").stat().st_mode


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    write_atomically(file, "old")
    monkeypatch.setattr(os, "fsync", fail_with_full_disk)
    with pytest.raises(NotSaved, match=r"file.*No space left.*untouched"):
        write_atomically(file, "new")
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_a_folder_appears_whole_and_replaces_nothing_that_has_come_to_be_there(tmp_path: Path) -> None:
    target = tmp_path / "parent" / "model"
    target.mkdir(parents=True)  # an empty one is nothing
    with atomic_folder(target) as folder:
        (folder / "inner").mkdir()
        (folder / "inner" / "first").write_text("first")
        assert not any(target.iterdir())
    with pytest.raises(NotSaved, match=r"model.*not empty.*untouched"), atomic_folder(target) as folder:
        (folder / "second").write_text("second")
    assert [path.name for path in target.rglob("*")] == ["inner", "first"]
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left"), RuntimeError("I/O error: No space left on device (os error 28)")]
)
def test_a_full_disk_leaves_nothing_of_a_folder(tmp_path: Path, error: Exception) -> None:
    nothing = r"model.*No space left.*nothing was left behind"
    with pytest.raises(NotSaved, match=nothing), atomic_folder(tmp_path / "model") as folder:
        (folder / "file").write_text("half of the n")
        raise error
    assert list(tmp_path.iterdir()) == []


def test_errors_that_are_not_the_disks_pass_unchanged(tmp_path: Path) -> None:
    for error in (BadInput("row 3"), ZeroDivisionError("x"), KeyboardInterrupt()):
        with pytest.raises(type(error)), atomic_folder(tmp_path / "model"):
            raise error
    assert list(tmp_path.iterdir()) == []


def test_a_path_below_a_file_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotSaved, match="file/model"), atomic_folder(tmp_path / "file" / "model"):
        pass


def test_what_a_killed_process_left_is_removed_by_the_next_save(tmp_path: Path) -> None:
    target = tmp_path / "model"
    program = (
        "import os, signal, sys; from pathlib import Path; from umpteen.files.storage import atomic_folder\n"
        "with atomic_folder(Path(sys.argv[1])) as folder:\n"
        "    (folder / 'half').touch(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    killed = subprocess.run([sys.executable, "-c", program, str(target)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert not target.exists() and len(list(tmp_path.iterdir())) == 1
    with atomic_folder(target) as folder:
        (folder / "whole").touch()
    assert list(tmp_path.iterdir()) == [target]


def test_two_saves_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    with pytest.raises(NotSaved), atomic_folder(tmp_path / "model") as first:
        (first / "first").touch()
        with atomic_folder(tmp_path / "model") as second:
            (second / "second").touch()
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["second"]  # who is done first


def test_sha256_is_the_standard_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    assert sha256_of(tmp_path / "file") == hashlib.sha256(b"abc").hexdigest()


HOLD = """
import sys
from pathlib import Path
from umpteen.files.storage import {name}
with {name}(Path(sys.argv[1]){more}):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def held_elsewhere(path: Path, name: str = "locked_file", more: str = "") -> Iterator[subprocess.Popen[str]]:
    """Another process holds the path until the block ends."""
    program = HOLD.format(name=name, more=more)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", program, str(path)], **pipes) as process:  # type: ignore[call-overload]
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


def test_a_lock_is_refused_by_name_while_held_and_free_after_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "new" / "lock"
    with held_elsewhere(path) as holder, pytest.raises(InUse, match=rf"pid {holder.pid}\) is at work in .*lock"):
        locked_file(path)
    with locked_file(path), pytest.raises(InUse, match=f"pid {os.getpid()}"):
        locked_file(path, wait=0.1)


def test_who_waits_for_ever_gets_the_lock_when_it_is_free(tmp_path: Path) -> None:
    with held_elsewhere(tmp_path / "lock") as holder:
        Timer(0.2, holder.kill).start()
        with locked_file(tmp_path / "lock", wait=None):
            pass


def test_a_lock_neither_follows_a_link_nor_changes_somebodys_file(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("my notes")
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    with pytest.raises(BadInput, match="link is a link"):
        locked_file(tmp_path / "link")
    with locked_file(tmp_path / "mine"):
        pass
    assert (tmp_path / "mine").read_text() == "my notes"


def test_a_lock_of_a_file_that_was_replaced_is_not_in_place(tmp_path: Path) -> None:
    with locked_file(tmp_path / "lock") as lock:
        assert lock.is_in_place()
        (tmp_path / "lock").rename(tmp_path / "away")
        assert not lock.is_in_place()
        with locked_file(tmp_path / "lock"):
            assert not lock.is_in_place()


def test_a_workspace_goes_on_with_the_same_identity_and_begins_anew_with_another(tmp_path: Path) -> None:
    folder = tmp_path / "model.fitting"
    for identity, begun in (({"a": 1}, False), ({"a": 1}, True), ({"a": 2}, False)):
        with open_workspace(folder, "fit", identity) as workspace:
            assert workspace.begun == begun == (folder / "done").exists()
            (folder / "done").touch()
    with open_workspace(folder, "fit", {"a": 2}, anew=True) as workspace:
        assert not workspace.begun and not (folder / "done").exists()
        (folder / "done").touch()
        workspace.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_workspace_that_nothing_was_put_in_is_not_left_behind(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="refused"), open_workspace(tmp_path / "work", "fit"):
        raise ValueError("refused")
    assert list(tmp_path.iterdir()) == []


def in_the_way(folder: Path, what: str) -> None:
    elsewhere = folder.with_name("elsewhere")
    if what == "file":
        folder.write_text("notes")
    elif what == "folder":
        folder.mkdir()
        (folder / "notes").write_text("notes")
    else:
        with open_workspace(elsewhere if what == "link" else folder, "fit" if what == "link" else "training"):
            ((elsewhere if what == "link" else folder) / "notes").write_text("notes")
    if what == "link":
        folder.symlink_to(elsewhere)


@pytest.mark.parametrize("what", ["file", "folder", "link", "workspace of another kind"])
def test_what_is_no_workspace_of_this_kind_is_refused_and_left_alone(tmp_path: Path, what: str) -> None:
    in_the_way(tmp_path / "work", what)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(BadInput, match=r"work is in the way: fit .*move it away"):
        open_workspace(tmp_path / "work", "fit", anew=True).__enter__()
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_an_empty_folder_becomes_a_workspace_also_after_a_kill_while_it_was_marked(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / ".umpteen-workspace.json.partial.host.1.ab").touch()
    with open_workspace(tmp_path / "work", "fit") as workspace:
        assert not workspace.begun


def test_a_workspace_is_refused_while_another_process_is_in_it(tmp_path: Path) -> None:
    work = tmp_path / "work"
    elsewhere = held_elsewhere(work, "open_workspace", ", 'fit'")
    with elsewhere as holder, pytest.raises(InUse, match=rf"\(pid {holder.pid}\) is at work in {work};"):
        open_workspace(work, "fit", anew=True).__enter__()
    with open_workspace(work, "fit") as workspace:
        assert workspace.begun
