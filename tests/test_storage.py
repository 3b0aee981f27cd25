"""Files and folders are written whole or not at all."""

import errno
import hashlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from umpteen import storage
from umpteen.errors import BadInput, NotSaved
from umpteen.storage import atomic_folder, sha256_of, write_atomically


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


def test_a_folder_is_replaced_whole(tmp_path: Path) -> None:
    target = tmp_path / "parent" / "model"
    for name in ("first", "second"):
        with atomic_folder(target) as folder:
            (folder / "inner").mkdir()
            (folder / "inner" / name).write_text(name)
    assert [path.name for path in (target / "inner").iterdir()] == ["second"]
    assert list(target.parent.iterdir()) == [target]


def test_a_folder_is_replaced_where_names_cannot_be_exchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage.ctypes, "CDLL", lambda *_, **__: object())
    for name in ("first", "second"):
        with atomic_folder(tmp_path / "model") as folder:
            (folder / name).touch()
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["second"]
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left"), RuntimeError("I/O error: No space left on device (os error 28)")]
)
def test_a_full_disk_leaves_the_old_folder(tmp_path: Path, error: Exception) -> None:
    target = tmp_path / "model"
    with atomic_folder(target) as folder:
        (folder / "file").write_text("old")
    with pytest.raises(NotSaved, match=r"model.*No space left.*untouched"), atomic_folder(target) as folder:
        (folder / "file").write_text("half of the n")
        raise error
    assert (target / "file").read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_kill_between_the_two_renames_of_an_exchange_loses_nothing(tmp_path: Path) -> None:
    target = tmp_path / "model"
    with atomic_folder(target) as folder:
        (folder / "file").write_text("old")
    target.replace(tmp_path / ".model.replaced")  # where the kill left it
    storage.put_back(target)
    assert (target / "file").read_text() == "old" and not (tmp_path / ".model.replaced").exists()


def test_a_failed_exchange_leaves_the_old_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "model"
    with atomic_folder(target) as folder:
        (folder / "old").touch()
    monkeypatch.setattr(storage, "_exchange", fail_with_full_disk)
    with pytest.raises(NotSaved), atomic_folder(target) as folder:
        (folder / "new").touch()
    assert [path.name for path in target.iterdir()] == ["old"]
    assert list(tmp_path.iterdir()) == [target]


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
        "import os, signal, sys; from pathlib import Path; from umpteen.storage import atomic_folder\n"
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
    with atomic_folder(tmp_path / "model") as first, atomic_folder(tmp_path / "model") as second:
        (first / "first").touch()
        (second / "second").touch()
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["first"]  # the last to finish


def test_sha256_is_the_standard_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    assert sha256_of(tmp_path / "file") == hashlib.sha256(b"abc").hexdigest()
