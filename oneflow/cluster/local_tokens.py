"""The two tokens of a local cluster: the user's own, and that of its daemons."""

from __future__ import annotations

import time
from pathlib import Path

from oneflow.core.folders import check_unwritten
from oneflow.scheduler.cluster.audit import AUDIT_FILE, Audit
from oneflow.scheduler.jobs.records import TokenRecord
from oneflow.scheduler.jobs.store import SqliteStore
from oneflow.scheduler.jobs.tokens import new_secret, read_token_file, write_token_file
from oneflow.services.proof import digest_of

ADMIN_TOKEN = "token"
DAEMON_TOKEN = "daemon.token"
DATABASE = "cluster.db"


def prepare_tokens(base: Path, config: Path) -> None:
    """Both files are there (mode 0600), and the scheduler that will start knows them.

    A token that the user has already is taken as it is: it may be of use elsewhere. One that the
    scheduler does not know replaces those that `up` made before it, which are worth nothing then.
    Raises ConfigError for a token file that others can read.
    """
    now = time.time()
    wanted = [
        TokenRecord("local", "admin", digest_of(_secret(config / ADMIN_TOKEN)), now),
        TokenRecord("local-daemons", "daemon", digest_of(_secret(base / DAEMON_TOKEN)), now),
    ]
    state = base / "scheduler"
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    store = SqliteStore(state / DATABASE)
    try:
        tokens = store.tokens()
        known = {(token.name, token.digest) for token in tokens if not token.revoked}
        added = [t for t in wanted if (t.name, t.digest) not in known]
        replaced = [old for old in tokens if old.name in {new.name for new in added}]
        store.drop_tokens(replaced)
        store.put_tokens(added)
    finally:
        store.close()
    _note(state, replaced, added)


def _note(state: Path, replaced: list[TokenRecord], added: list[TokenRecord]) -> None:
    """Note the change in the audit log, as that of a verb."""
    audit = Audit(state / AUDIT_FILE)
    try:
        for what, tokens in (("token_revoke", replaced), ("token_create", added)):
            for token in tokens:
                audit.note(what, "", "", name=token.name, role=token.role, why="cluster up")
    finally:
        audit.close()


def _secret(path: Path) -> str:
    if not path.exists():
        write_token_file(path, new_secret())
    check_unwritten(path.parent)
    return read_token_file(path)
