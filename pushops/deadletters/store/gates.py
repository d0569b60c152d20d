"""The gates that a letter passes before it is sent again: one text of SQL for preview, claim and opening alike."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, LiteralString

from pushops.db import Tx
from pushops.deadletters.filters import CLAUSE, Filter
from pushops.deadletters.letter import FRESH_SECONDS

# Which letters a replay is about. Poison is left out unless it is asked for by name.
POISON_TOO: Final = "(error_class <> 'poison' OR %(f_class)s::text IS NOT DISTINCT FROM 'poison')"

# What the gates look at, of letters named d: the message, the subscription, the ledger, the way there. A lane is a host
# under a key, and a letter's host is its endpoint's, which never changes. Its attempts are looked up by its key, once:
# an EXISTS for each question would be answered from a hash of everybody's attempts, made anew for every page.
STANDING: Final = """
  LEFT JOIN {schema}.push_message AS m ON m.message_id = d.message_id
  LEFT JOIN {schema}.push_subscription AS s ON s.id = d.subscription_id
  LEFT JOIN {schema}.push_dispatch AS w ON w.message_id = d.message_id AND w.endpoint_hash = d.endpoint_hash
  LEFT JOIN {schema}.push_lane AS n ON n.host = d.endpoint_host AND n.vapid_key_id = coalesce(s.vapid_key_id, '')
  LEFT JOIN {schema}.push_provider AS p
    ON p.push_service = coalesce(n.push_service, s.push_service, d.push_service)
  LEFT JOIN {schema}.push_throttle AS t ON t.endpoint_hash = d.endpoint_hash
 CROSS JOIN LATERAL (
   SELECT max(a.attempt) AS last, bool_or(a.kind = 'replay' AND a.outcome = 'accepted') AS accepted,
          bool_or(a.kind = 'replay' AND a.settled_at IS NULL) AS open
     FROM {schema}.push_dlq_attempt AS a WHERE a.replay_key = d.replay_key) AS tries"""

# NULL: it may be sent. 'held': it is left as it is. Anything else ends the letter, and is why.
# Gate 1, is it fresh; gate 2, is there somebody to send it to, and something to send; gate 3, was it sent already, or
# may it have been (forced: an operator says that it is sent whatever was); then what waits for its push service.
# While a guard is open nobody's death is believed, and so no letter's recipient is gone.
VERDICT: Final = (
    """
  CASE WHEN NOT d.replayable THEN 'not_replayable'
       WHEN m.cancelled_at IS NOT NULL THEN 'message_cancelled'
       WHEN d.expires_at < clock_timestamp() + interval '"""
    + str(FRESH_SECONDS)
    + """ seconds' THEN 'ttl_expired'
       WHEN p.guard_id IS NOT NULL THEN 'held'
       WHEN s.id IS NULL OR s.deleted_at IS NOT NULL OR s.state NOT IN ('pending', 'active')
            OR s.send_block IS NOT NULL OR s.owner_no <> d.owner_no OR s.endpoint_hash <> d.endpoint_hash
       THEN 'subscription_gone'
       WHEN m.message_id IS NULL OR m.payload_ref IS NULL AND (d.payload_ref IS NOT NULL OR m.payload_bytes > 0)
       THEN 'payload_missing'
       WHEN NOT %(forced)s::boolean AND (w.outcome = 'accepted' OR tries.accepted)
       THEN 'already_replayed'
       WHEN NOT %(forced)s::boolean AND d.on_in_doubt <> 'resend' AND (d.in_doubt OR tries.open)
       THEN 'in_doubt'
       WHEN w.state <> 'ended' OR p.unhealthy_at IS NOT NULL OR n.hold_id IS NOT NULL
            OR coalesce(s.vapid_key_id, '') <> ALL (%(keys)s::text[])
            OR t.until > now()
            OR EXISTS (SELECT FROM {schema}.push_pause AS x
                        WHERE x.kind = 'provider' AND x.name = coalesce(n.push_service, s.push_service)
                           OR x.kind = 'key' AND x.name = s.vapid_key_id
                           OR x.kind = 'campaign' AND x.name = d.campaign_id)
       THEN 'held' END"""
)

# What a replay asked for now would do, without doing it.
PREVIEW: Final[LiteralString] = (
    """
SELECT coalesce(n.push_service, s.push_service, d.push_service) AS push_service,"""
    + VERDICT
    + """ AS verdict, count(*)::bigint AS letters
  FROM (SELECT * FROM {schema}.push_dlq
         WHERE replay_state = 'parked' AND next_replay_at <= now() AND """
    + POISON_TOO
    + " AND "
    + CLAUSE
    + ") AS d"
    + STANDING
    + " GROUP BY 1, 2"
)
LEFT_OUT: Final[LiteralString] = (
    "SELECT count(*)::bigint AS total, count(*) FILTER (WHERE NOT "
    + POISON_TOO
    + ")::bigint AS poison, count(*) FILTER (WHERE "
    + POISON_TOO
    + " AND next_replay_at > now())::bigint AS waiting FROM {schema}.push_dlq WHERE replay_state = 'parked' AND "
    + CLAUSE
)


@dataclass(frozen=True)
class Counted:
    """Letters of one push service with one verdict; None: they would be sent."""

    push_service: str
    verdict: str | None
    letters: int


@dataclass(frozen=True)
class LeftOut:
    """All that a filter names and are parked; of them poison that was not asked for, and what backs off."""

    total: int
    poison: int
    waiting: int


def params(keys: Collection[str], *, forced: bool = False) -> Mapping[str, Any]:
    """Values for ``VERDICT``. ``keys``: ids of the VAPID keys that we hold."""
    return {"keys": list(keys), "forced": forced}


def preview(tx: Tx, wanted: Filter, keys: Collection[str]) -> list[Counted]:
    return tx.rows(PREVIEW, wanted.params() | dict(params(keys)), Counted)


def left_out(tx: Tx, wanted: Filter) -> LeftOut:
    return tx.one(LEFT_OUT, wanted.params(), LeftOut)
