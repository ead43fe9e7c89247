"""The journal's tables, one step per version. Steps are never edited, only added.

tests/fleet/node/journal holds a frozen file of every version that was ever released.
"""

from __future__ import annotations

from fleet.core.sqlite import Schema

APPLICATION_ID = 0x464C4A31
"""Marks the file as a journal of ours; another number is a foreign file."""

TOMBSTONES_MAX = 1024
OPERATIONS_MAX = 2048

_V1 = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE units (id TEXT PRIMARY KEY, body TEXT NOT NULL, digest TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE claims (uid TEXT PRIMARY KEY, body TEXT NOT NULL, digest TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE tombstones (uid TEXT PRIMARY KEY, token TEXT NOT NULL, at REAL NOT NULL);
CREATE TABLE workers (
  worker_id TEXT PRIMARY KEY, accelerator TEXT NOT NULL, units TEXT NOT NULL,
  identity TEXT NOT NULL, at REAL NOT NULL
) WITHOUT ROWID;
CREATE TABLE operations (
  id TEXT PRIMARY KEY, kind TEXT NOT NULL, target TEXT NOT NULL, request TEXT NOT NULL,
  result TEXT, created_at REAL NOT NULL, finished_at REAL
);
CREATE TABLE outbox (
  sequence INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, body TEXT NOT NULL,
  created_at REAL NOT NULL, attempts INTEGER NOT NULL DEFAULT 0, next_at REAL NOT NULL DEFAULT 0
);
"""

_V2 = """
CREATE TABLE acts (
  sequence INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, operator TEXT NOT NULL,
  act TEXT NOT NULL, target TEXT NOT NULL, detail TEXT NOT NULL
);
CREATE INDEX operations_by_age ON operations (finished_at);
"""

SCHEMA = Schema(application_id=APPLICATION_ID, steps=(_V1, _V2))

COLUMNS = {
    "meta": "key, value",
    "units": "id, body, digest",
    "claims": "uid, body, digest",
    "tombstones": "uid, token, at",
    "workers": "worker_id, accelerator, units, identity, at",
    "operations": "id, kind, target, request, result, created_at, finished_at",
    "outbox": "sequence, kind, body, created_at, attempts, next_at",
    "acts": "sequence, at, operator, act, target, detail",
}
"""What every statement of ours relies on: a file keeps its tables' definitions as text, which can
be damaged like any other."""

KEYS = {
    "units": "id",
    "claims": "uid",
    "tombstones": "uid",
    "operations": "id",
    "outbox": "sequence",
}
"""What names a row, in the tables whose rows are judged one by one."""
