"""The file of all objects: SQLite in WAL mode, with a commit for each batch of writes. Blocking; used by one thread at a time.

Owns: the schema and its version, the check at the start, and the copy that replaces a damaged file. A write that was committed
survives a power cut (`synchronous=FULL`). Source: the SQLite documentation, "Write-Ahead Logging" and "Recovering Data".
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Iterator, Sequence

import msgspec

from pykubelet.base.kit.values import Value
from pykubelet.edges.host.fs import files
from pykubelet.edges.host.fs.errors import HostError

#: The version of the schema, kept in `PRAGMA user_version`.
SCHEMA = 1
#: After a damaged file was replaced by its copy, versions continue so far above those of the copy. Clients of the lost changes
#: then get "too large" or "expired", and never a version that meant something else.
VERSIONS_SKIPPED = 1 << 24
#: What is added to the path for the path of the copy.
COPY = ".copy"
_TABLES = (
    "CREATE TABLE objects (resource TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL, data BLOB NOT NULL,"
    " PRIMARY KEY (resource, namespace, name)) WITHOUT ROWID",
    "CREATE TABLE state (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
    "INSERT INTO state VALUES ('version', 1)",
)


class StoredKey(Value):
    """Where an object is stored. `resource`: such as `pods`, or `leases.coordination.k8s.io`; `namespace`: "" for the cluster's."""

    resource: str
    namespace: str
    name: str


class Row(Value):
    """One write: the object's JSON text; None: it is removed."""

    key: StoredKey
    data: bytes | None


class StoreError(Exception):
    """The file cannot be used. The text is for the administrator."""


class Database:
    """The open file. `version`: the newest resource version of the file; `notes`: what its start had to mend."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.notes: list[str] = []
        #: A thread may still commit while the program ends: the connection must not be closed under it.
        self._lock = threading.Lock()
        self._is_closed = False
        self._connection = self._open_or_recover()
        (self.version,) = self._connection.execute("SELECT value FROM state WHERE key = 'version'").fetchone()

    def rows(self) -> Iterator[tuple[StoredKey, bytes]]:
        """All objects."""
        for resource, namespace, name, data in self._connection.execute(
            "SELECT resource, namespace, name, data FROM objects"
        ):
            yield StoredKey(resource, namespace, name), data

    def commit(self, rows: Sequence[Row], version: int) -> None:
        """Write all rows or none. Raises StoreError, after which the file has its former content."""
        with self._lock:
            self._commit(rows, version)

    def _commit(self, rows: Sequence[Row], version: int) -> None:
        if self._is_closed:
            raise StoreError(f"{self.path} is closed")
        connection = self._connection
        try:
            connection.execute("BEGIN IMMEDIATE")
            for row in rows:
                key = (row.key.resource, row.key.namespace, row.key.name)
                if row.data is None:
                    connection.execute("DELETE FROM objects WHERE resource = ? AND namespace = ? AND name = ?", key)
                else:
                    connection.execute("INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?)", (*key, row.data))
            connection.execute("UPDATE state SET value = ? WHERE key = 'version'", (version,))
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            with contextlib.suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            raise StoreError(f"cannot write {self.path}: {error}") from error
        self.version = version

    def copy(self) -> None:
        """Write the copy that replaces a damaged file. The former copy stays until the new one is whole. Raises StoreError."""
        with self._lock:
            self._copy()

    def _copy(self) -> None:
        if self._is_closed:
            raise StoreError(f"{self.path} is closed")
        whole, partial = self.path + COPY, self.path + COPY + ".partial"
        try:
            files.remove_file(partial)
            files.create_file(partial, 0o600)  # an empty file is as good as none, and Secrets are in it
            self._connection.execute("VACUUM INTO ?", (partial,))
            files.sync_file(partial)
            files.rename(partial, whole)
            files.sync_file(whole)
        except (sqlite3.Error, HostError) as error:
            raise StoreError(f"cannot copy {self.path}: {error}") from error

    def close(self) -> None:
        """Close the file, after what is being written. A later use raises."""
        with self._lock:
            self._is_closed = True
            self._connection.close()

    def _open_or_recover(self) -> sqlite3.Connection:
        try:
            if files.stat_file(self.path) is not None or files.stat_file(self.path + COPY) is None:
                return _opened(self.path)
            damage = "it is missing"  # also after a power cut in the middle of what follows
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise StoreError(f"cannot open {self.path}: {error}") from error
            damage = str(error)
        damaged, copy = self.path + ".damaged", self.path + COPY
        try:
            for ending in ("", "-wal", "-shm"):
                if files.stat_file(self.path + ending) is not None:
                    files.rename(self.path + ending, damaged + ending)
            if files.stat_file(copy) is None:
                raise StoreError(
                    f"{self.path} is damaged ({damage}) and has no copy; it is {damaged} now. A start without it begins with no objects"
                )
            # before the copy has its name, so that its versions are never given twice
            _skip_versions(copy)
            files.rename(copy, self.path)
            connection = _opened(self.path)
        except (sqlite3.DatabaseError, HostError) as error:
            raise StoreError(
                f"{self.path} was damaged ({damage}; see {damaged}), and so is its copy: {error}"
            ) from error
        self.notes.append(
            f"{self.path} was damaged ({damage}): the last good copy is used; the damaged file is {damaged}"
        )
        return connection


def _skip_versions(path: str) -> None:
    connection = _opened(path)
    try:
        connection.execute("UPDATE state SET value = value + ? WHERE key = 'version'", (VERSIONS_SKIPPED,))
    finally:
        connection.close()
    files.sync_file(path)


def _opened(path: str) -> sqlite3.Connection:
    """The checked file, made if there is none. Raises sqlite3.DatabaseError; OperationalError if it is not the content's fault."""
    files.create_file(path, 0o600)
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        for pragma in (
            "journal_mode=WAL",
            "synchronous=FULL",
            "locking_mode=EXCLUSIVE",
            "cache_size=-256",
            "temp_store=MEMORY",
        ):
            connection.execute(f"PRAGMA {pragma}")
        findings = [row[0] for row in connection.execute("PRAGMA integrity_check(1)")]
        if findings != ["ok"]:
            raise sqlite3.DatabaseError(findings[0])
        (schema,) = connection.execute("PRAGMA user_version").fetchone()
        if schema > SCHEMA:
            raise StoreError(
                f"{path} was written by a newer version of this program (schema {schema}, known: {SCHEMA})"
            )
        if schema == 0:
            connection.execute("BEGIN IMMEDIATE")
            for statement in _TABLES:
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {SCHEMA}")
            connection.execute("COMMIT")
        for (data,) in connection.execute("SELECT data FROM objects"):
            _check_object(data)
    except BaseException:
        connection.close()
        raise
    files.sync_file(path)
    return connection


def _check_object(data: bytes) -> None:
    """SQLite has no checksums of what is in rows."""
    try:
        str(data, "utf-8")
        msgspec.json.decode(data, type=msgspec.Raw)
    except (UnicodeDecodeError, msgspec.DecodeError) as error:
        raise sqlite3.DatabaseError(f"an object is not JSON: {error}") from error
