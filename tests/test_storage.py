"""Files being written: what they count, digest and make durable."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import secrets
from contextlib import nullcontext
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given
from hypothesis import strategies as st
from lab.elsewhere import Elsewhere
from lab.failing_store import EndpointConnectionError, NoCredentialsError, failing_store
from lab.small_disk import no_file_beyond
from structlog.testing import capture_logs

from conduit_dagster import storage
from conduit_dagster.recovery.errors import from_os_error
from conduit_dagster.sdk.staging import discard_folder

LARGE = 1 << 14
SIZES = st.lists(st.sampled_from([0, 1, 100, LARGE - 1, LARGE, LARGE + 1, 3 * LARGE]), max_size=8)


@pytest.mark.parametrize("where", ["local", "memory://new-files"])
@given(sizes=SIZES)
def test_pieces_of_any_size_are_written_in_order(
    tmp_path_factory: pytest.TempPathFactory, where: str, sizes: list[int]
) -> None:
    pieces = [secrets.token_bytes(size) for size in sizes]
    folder = str(tmp_path_factory.mktemp("new")) if where == "local" else where
    file = storage.NewFile(storage.join(folder, secrets.token_hex(8)))
    for piece in pieces:
        reused = bytearray(piece)
        file.write(reused)
        reused[:] = bytes(len(reused))  # as the buffers of pyarrow's writers are
    whole, digest = b"".join(pieces), file.finish()
    assert (file.bytes, digest) == (len(whole), hashlib.sha256(whole).hexdigest())
    assert b"".join(storage.chunks(file.url)) == whole


@pytest.mark.parametrize("size", [LARGE // 2, 2 * LARGE])
def test_a_full_disk_is_told_before_the_file_counts(tmp_path: Path, size: int) -> None:
    """Also if the last bytes were waiting."""
    file = storage.NewFile(str(tmp_path / "new"))
    with no_file_beyond(LARGE // 4), pytest.raises(OSError, match="File too large") as error:
        try:
            file.write(bytes(size))
            file.finish()
        finally:
            file.abort()  # raises nothing more
    assert from_os_error(error.value, "staging").place == str(tmp_path / "new")  # of several disks it is this one


def test_a_folder_is_not_synced_where_its_disk_can_not() -> None:
    """As on CIFS: no destination there ended a step. A file's bytes are always synced."""
    if not Path("/proc").is_dir():
        pytest.skip("no folder here refuses it")
    folder = os.open("/proc", os.O_RDONLY)
    with pytest.raises(OSError, match="Invalid argument"):
        os.fsync(folder)
    os.close(folder)
    storage.sync("/proc")
    with pytest.raises(OSError, match="Invalid argument"):
        storage.sync("/proc/version")


def test_a_file_that_an_error_leaves_is_closed(tmp_path: Path) -> None:
    """Python would write what waits whenever it collects the file, and print what goes wrong then."""
    with pytest.raises(KeyError), storage.NewFile(str(tmp_path / "new")) as file:
        file.write(b"waits")
        raise KeyError
    with pytest.raises(ValueError, match="closed"):
        file.write(b"more")


@pytest.mark.parametrize("links", [True, False])
def test_a_full_disk_takes_no_name_for_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool) -> None:
    """Also on a file system without hard links."""
    if not links:
        monkeypatch.setattr(storage.os, "link", _no_links)
    url = str(tmp_path / "new")
    with no_file_beyond(LARGE // 4), pytest.raises(OSError, match="File too large"):
        storage.put_new(url, bytes(LARGE))
    assert list(tmp_path.iterdir()) == []
    assert storage.put_new(url, bytes(LARGE))
    assert not storage.put_new(url, b"")
    assert storage.size(url) == LARGE


def _no_links(*_: object) -> None:
    raise OSError(errno.EPERM, "Operation not permitted")


class _LateStore(MemoryFileSystem):
    """Looks for an existing file only when a new one is closed, as object stores do."""

    protocol = "late"
    store: ClassVar[dict[str, Any]] = {}
    error: ClassVar[OSError] = FileExistsError()
    pseudo_dirs: ClassVar[list[str]] = [""]

    def open(self, path: str, mode: str = "rb", **more: Any) -> Any:
        return _Late(self, path) if mode == "xb" else super().open(path, mode, **more)


class _Late(io.BytesIO):
    def __init__(self, fs: _LateStore, path: str) -> None:
        super().__init__()
        self._fs, self._path = fs, path

    def close(self) -> None:
        if not self.closed:
            data = self.getvalue()
            super().close()
            if self._fs.exists(self._path):
                raise self._fs.error
            self._fs.pipe_file(self._path, data)


@pytest.mark.parametrize("error", [FileExistsError(), OSError(errno.EINVAL, "a precondition failed")])
def test_of_two_writers_of_one_name_at_an_object_store_the_first_one_stays(
    monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    fsspec.register_implementation("late", _LateStore, clobber=True)
    monkeypatch.setattr(_LateStore, "error", error)
    url, create = f"late://{secrets.token_hex(4)}/new", storage.create

    def late(of: str) -> Any:
        file = create(of)
        monkeypatch.setattr(storage, "create", create)
        assert storage.put_new(url, b"first")
        return file

    monkeypatch.setattr(storage, "create", late)
    with nullcontext() if isinstance(error, FileExistsError) else pytest.raises(OSError, match="precondition"):
        assert not storage.put_new(url, b"second")
    assert b"".join(storage.chunks(url)) == b"first"


class _ListingStore(Elsewhere):
    """Answers from the listings that it keeps, as fsspec's object stores do."""

    protocol = "listing"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]

    def ls(self, path: str, detail: bool = True, **more: Any) -> Any:
        found: Any = super().ls(path, detail=True, **more)
        self.dircache[path] = found
        return found if detail else [entry["name"] for entry in found]

    def info(self, path: str, **more: Any) -> Any:
        known = self._ls_from_cache(path)
        return known[0] if known else super().info(path, **more)

    def exists(self, path: str, **more: Any) -> bool:
        try:
            self.info(path, **more)
        except FileNotFoundError:
            return False
        return True

    def invalidate_cache(self, path: str | None = None) -> None:
        self.dircache.clear()


class _StrictStore(_ListingStore):
    """Refuses options that it does not know, as sftp does."""

    protocol = "strict"

    def __init__(self) -> None:
        super().__init__()


@pytest.mark.parametrize("store", [_ListingStore, _StrictStore])
def test_what_another_process_writes_after_a_listing_is_seen(store: type[_ListingStore]) -> None:
    fsspec.register_implementation(store.protocol, store, clobber=True)
    folder = f"{store.protocol}://{secrets.token_hex(4)}"
    assert storage.put_new(f"{folder}/old", b"old")
    assert storage.files(folder) == ["old"]
    _write_elsewhere(store, f"{folder}/new")
    _write_elsewhere(store, f"{folder}/step/part")
    assert storage.size(f"{folder}/new") == 3
    storage.remove(f"{folder}/new")
    storage.remove_folder(f"{folder}/step")
    assert (storage.files(folder), storage.folders(folder)) == (["old"], [])


@pytest.mark.parametrize("name", ["run[1]", "run?", "run*"])
def test_a_name_in_a_store_is_no_pattern(name: str) -> None:
    """fsspec takes it for one, and removed or moved the files of others."""
    base = f"memory://{secrets.token_hex(8)}"
    other, own = f"{base}/run1/step", f"{base}/{name}/step"
    for folder in (other, own):
        for file in ("part", "in/part"):
            assert storage.put_new(f"{folder}/{file}", folder.encode())
    storage.rename(f"{own}/part", f"{own}/moved")
    assert (storage.files(own), storage.size(f"{own}/moved")) == (["moved"], len(own))
    storage.remove_folder(own)
    storage.remove_folder(own)
    assert (storage.files(own), storage.folders(own)) == ([], [])
    assert (storage.files(other), storage.files(f"{other}/in")) == (["part"], ["part"])


def _write_elsewhere(store: type[_ListingStore], url: str) -> None:
    store(skip_instance_cache=True).pipe_file(url, b"new")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (EndpointConnectionError("could not connect"), "file.unreachable"),
        (NoCredentialsError("unable to locate credentials"), "file.no_permission"),
        (PermissionError("Forbidden"), "file.no_permission"),
        (OSError(errno.EBUSY, "please reduce your request rate"), "file.error"),
        (FileNotFoundError("the bucket does not exist"), "file.missing"),
    ],
)
def test_an_error_of_a_store_says_what_the_store_said(error: Exception, code: str) -> None:
    """Whatever its client's classes are, and without the password of the URL."""
    with failing_store(error) as url, pytest.raises(OSError) as raised:
        storage.put_new(f"{url}/file", b"data")
    ours = from_os_error(raised.value, "can't write")
    assert (ours.code, ours.place) == (code, "failing://bucket/folder/file")
    assert str(error.args[-1]) in ours.message and ours.fix != ""


class _TakenName(io.BytesIO):
    """A new file of S3, which looks for an existing one when it is closed."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error: Exception | None = error

    def close(self) -> None:
        error, self._error = self._error, None
        super().close()
        if error is not None:
            raise error


@pytest.mark.parametrize("more", [{"Condition": "If-None-Match"}, {}])
def test_a_name_that_is_taken_is_no_error_at_any_s3(more: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Amazon's answer repeats the header; that of other servers does not."""
    translate = pytest.importorskip("s3fs.errors").translate_boto_error
    refused = pytest.importorskip("botocore.exceptions").ClientError
    answer = {"Error": {"Code": "PreconditionFailed", "Message": "a precondition did not hold", **more}}
    taken = translate(refused(answer, "PutObject"))
    with monkeypatch.context() as patched:
        patched.setattr(MemoryFileSystem, "open", lambda *_, **__: _TakenName(taken))
        with pytest.raises(FileExistsError):
            storage.create("memory://taken/file").close()


def test_nothing_is_missing_in_a_store_that_does_not_answer() -> None:
    """A prepared step's staging would count as lost."""
    with failing_store(EndpointConnectionError("could not connect")) as url:
        for ask in (storage.size, storage.files, storage.folders, storage.remove, storage.remove_folder):
            with pytest.raises(OSError, match="could not connect"):
                ask(url)


class _KeepingStore(MemoryFileSystem):
    """Removes nothing; as S3's client it says so only of a file that is removed by itself."""

    protocol = "keeping"

    def rm(self, path: str, **_: Any) -> None:
        pass

    def rm_file(self, path: str) -> None:
        raise PermissionError(f"Access Denied: {path}")


def test_a_folder_of_a_store_that_stays_is_told() -> None:
    """A deleted pipeline's records would stay, and staging grow, without a word."""
    fsspec.register_implementation("keeping", _KeepingStore, clobber=True)
    folder = f"keeping://{secrets.token_hex(8)}"
    assert storage.put_new(f"{folder}/step/part", b"data")
    with pytest.raises(OSError, match="Access Denied") as kept:
        storage.remove_folder(folder)
    assert from_os_error(kept.value, "can't remove").code == "file.no_permission"


class _BlockStore(MemoryFileSystem):
    """Counts reads: each copies a whole block in fsspec's object stores, and so does each line."""

    protocol = "blocks"
    store: ClassVar[dict[str, Any]] = {}
    reads: ClassVar[list[int]] = []

    def open(self, path: str, mode: str = "rb", **more: Any) -> Any:
        return super().open(path, mode, **more) if mode == "xb" else _Block(self.cat_file(path))


class _Block(io.BytesIO):
    def read(self, size: int | None = -1, /) -> bytes:
        _BlockStore.reads.append(size or 0)
        return super().read(size)


def test_lines_of_a_stored_file_are_read_in_blocks() -> None:
    fsspec.register_implementation("blocks", _BlockStore, clobber=True)
    url, lines = f"blocks://{secrets.token_hex(4)}", [b"%d\n" % i for i in range(10_000)]
    assert storage.put_new(url, b"".join(lines))
    with storage.open_read(url) as file:
        assert list(file) == lines
    assert 0 < len(_BlockStore.reads) < 10


def test_what_stays_of_a_discarded_folder_is_told_once(tmp_path: Path) -> None:
    links = [tmp_path / name for name in ("first", "second")]
    for link in links:
        link.symlink_to(tmp_path)  # removed as a folder by nobody, not even by root
    storage.remove_folder(str(tmp_path / "missing"))
    with pytest.raises(OSError) as kept:
        storage.remove_folder(str(links[0]))
    with capture_logs() as logged:
        for link in links:
            discard_folder(str(link))
    assert [(line["folder"], line["cause"]) for line in logged] == [(str(links[0]), str(kept.value))]
