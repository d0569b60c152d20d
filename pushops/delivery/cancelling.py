"""``cancel``: fan-out stops, and whoever is not in a sender's hands is not sent to any more."""

import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Final
from uuid import UUID

from pushops.db import Tx
from pushops.delivery import finishing
from pushops.delivery.store import messages as store
from pushops.errors import NotFoundError, RefusedError
from pushops.runtime import Runtime
from pushops.subscriptions.work import Conn, in_transaction

AT_ONCE: Final = timedelta(seconds=1)  # of ending rows while the caller waits; beat does the rest


@dataclass(frozen=True)
class Cancelled:
    """``messages`` were open and are cancelled now; ``rows`` of their recipients ended at once, the rest follow."""

    messages: tuple[UUID, ...]
    rows: int


def cancel(
    rt: Runtime,
    message_id: UUID | None = None,
    *,
    campaign: str | None = None,
    actor: str = "application",
    conn: Conn | None = None,
) -> Cancelled:
    """Cancel a message, or every open one of a campaign; what was sent stays sent, and a second time does nothing.

    Raises NotFoundError for a message that is not here.
    """
    if (message_id is None) == (campaign is None):
        raise RefusedError("expected one of message_id and campaign")
    cancelled = in_transaction(rt, conn, lambda tx: _cancel(tx, message_id, campaign, actor))
    for each in cancelled:
        rt.events.emit("message.cancelled", message=str(each), campaign=campaign, actor=actor)
    if conn is not None:
        return Cancelled(tuple(cancelled), 0)
    until = time.monotonic() + AT_ONCE.total_seconds()
    return Cancelled(tuple(cancelled), sum(finishing.finish_one(rt, each, until).ended for each in cancelled))


def _cancel(tx: Tx, message_id: UUID | None, campaign: str | None, actor: str) -> list[UUID]:
    if message_id is None:
        named = store.open_of_campaign(tx, str(campaign))
    elif store.by_id(tx, message_id) is None:
        raise NotFoundError(f"expected the id of a message, got {message_id}: there is none")
    else:
        named = [message_id]
    return [each for each in named if store.cancel(tx, each, actor)]
