"""All that is stored about one user, for that user: what the law calls a copy of the personal data."""

from collections.abc import Iterator
from typing import Any, Final

from pushops.erasure.store import exporting as store
from pushops.runtime import Runtime
from pushops.subscriptions.keychain import keychain
from pushops.subscriptions.leaving import known_user
from pushops.subscriptions.store import auditing
from pushops.subscriptions.work import in_transaction

# What opens a subscription, or answers for it, is no use to its person and a danger in a file.
LEFT_OUT: Final = "keys, sealed secrets, payloads and spools of other hosts are left out"
PAGE: Final = 1_000


def export(rt: Runtime, user: str, *, actor: str) -> Iterator[dict[str, Any]]:
    """One object for each row, ``store`` first; the first says whose they are and what is left out."""
    known = known_user(user)
    in_transaction(rt, None, lambda tx: auditing.note(tx, "export", actor, {"user_hmac": _hmac(rt, known)}))
    yield {"store": "export", "user": known, "note": LEFT_OUT}
    for name, statement in store.EXPORTS.items():
        after = ""
        while page := in_transaction(rt, None, lambda tx: store.page(tx, statement, known, after, PAGE)):  # noqa: B023
            yield from ({"store": name, **row.data} for row in page)
            after = page[-1].place
    yield from _dispatches(rt, known)


def _dispatches(rt: Runtime, user: str) -> Iterator[dict[str, Any]]:
    """The ledger, by pages of messages."""
    after = store.FIRST
    while (last := in_transaction(rt, None, lambda tx: store.last_message(tx, after))) is not None:  # noqa: B023
        found = in_transaction(rt, None, lambda tx: store.dispatches(tx, user, after, last))  # noqa: B023
        yield from ({"store": "ledger", **row.data} for row in found)
        after = last


def _hmac(rt: Runtime, user: str) -> str:
    return keychain(rt.settings).user_hmac(user).hex()
