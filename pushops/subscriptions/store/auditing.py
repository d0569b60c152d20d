"""Who did what to which subscription: hashes and users, no endpoint, no key."""

import json
from collections.abc import Sequence
from typing import Any, Final, LiteralString

from pushops.db import Tx

WRITE: Final[LiteralString] = """
INSERT INTO {schema}.audit (verb, actor, endpoint_hash, user_id, detail)
SELECT %(verb)s::text, %(actor)s::text, a.endpoint_hash, a.user_id, a.detail
  FROM unnest(%(hashes)s::bytea[], %(users)s::text[], %(details)s::jsonb[]) AS a (endpoint_hash, user_id, detail)"""

NOTE: Final[LiteralString] = """
INSERT INTO {schema}.audit (verb, actor, user_id, detail)
VALUES (%(verb)s::text, %(actor)s::text, %(user)s::text, %(detail)s::jsonb)"""

Entry = tuple[bytes, str | None, dict[str, Any]]


def write(tx: Tx, verb: str, actor: str, entries: Sequence[Entry]) -> None:
    """One audit row for each (endpoint hash, user, detail)."""
    if entries:
        hashes, users, details = zip(*entries, strict=True)
        params = {"hashes": list(hashes), "users": list(users), "details": [json.dumps(found) for found in details]}
        tx.run(WRITE, {"verb": verb, "actor": actor, **params})


def note(tx: Tx, verb: str, actor: str, detail: dict[str, Any], *, user: str | None = None) -> None:
    """One audit row about no subscription in particular; whom it names stands in ``user``, where an erasure looks."""
    tx.run(NOTE, {"verb": verb, "actor": actor, "user": user, "detail": json.dumps(detail)})
