"""What a claimed row is to carry: its message's payload, or what the renderer makes of it."""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from uuid import UUID

from pushops.delivery import payloads, rendering
from pushops.delivery.answer import Answer, Fault
from pushops.delivery.errors import PayloadMissingError
from pushops.delivery.rendering import Recipient, RenderFault
from pushops.delivery.store import ledger
from pushops.delivery.store.ledger import Claimed
from pushops.runtime import Runtime
from pushops.subscriptions.sealing import TamperedSealError, UnknownSealKeyError
from pushops.sweeps.sql import PLAN_INDEX

Loaded = tuple[Claimed, bytes | Answer]


def load(rt: Runtime, token: UUID, rows: Sequence[Claimed], seconds: float) -> Iterator[Loaded]:
    """Each row with its payload, or with the fault that stands for its answer.

    After so many seconds of rendering what is left is given back, so that a slow renderer sends a few rows at a time
    and not none.

    Rows that are rendered were claimed without a word of posting: rendering may kill this worker. What was rendered is
    said to be about to be sent, in one statement, and only what is still ours goes on.
    """
    plain = [row for row in rows if not row.rendered]
    yield from ((row, payload_of(rt, row)) for row in plain)
    left = deque(row for row in rows if row.rendered)
    rendered: list[Loaded] = []
    until = time.monotonic() + seconds
    while left and (not rendered or time.monotonic() < until):
        row = left.popleft()
        rendered.append((row, rendered_for(rt, row)))
    ready = [row for row, made in rendered if isinstance(made, bytes)]
    ours: set[tuple[UUID, bytes]] = set()
    if ready or left:
        with rt.db.transaction(planner=PLAN_INDEX) as tx:
            ours = ledger.posting(tx, token, ready)
            ledger.release(tx, token, left)
    for row, made in rendered:
        if isinstance(made, Answer) or (row.message_id, row.endpoint_hash) in ours:
            yield row, made


def payload_of(rt: Runtime, row: Claimed) -> bytes | Answer:
    """The message's own payload, or the fault that stands for its answer. Raises PayloadStoreError."""
    if row.payload_ref is None or row.payload_key_version is None:
        return b""
    try:
        return payloads.fetch(rt, row.message_id, row.payload_ref, row.payload_key_version)
    except PayloadMissingError:
        return Answer(None, Fault.PAYLOAD_MISSING)
    except UnknownSealKeyError:
        return Answer(None, Fault.NO_DATA_KEY)
    except TamperedSealError:
        return Answer(None, Fault.TAMPERED)


def rendered_for(rt: Runtime, row: Claimed) -> bytes | Answer:
    """What the renderer makes of it for this recipient; it may kill this worker. Raises PayloadStoreError."""
    payload = payload_of(rt, row)
    if isinstance(payload, Answer):
        return payload
    recipient = Recipient(
        row.subscription_id, row.user_id, row.locale, tuple(row.tags), row.push_service, row.max_payload
    )
    made = rendering.render(rt, payload, recipient)
    return Answer(None, Fault.RENDER) if isinstance(made, RenderFault) else made
