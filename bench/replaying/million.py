"""Triage of a table as a bad month leaves it, before vacuum saw it and after."""

import time
from statistics import median
from typing import Final, LiteralString

from bench.house import House, say
from bench.sending import people
from bench.timing import connected
from pushops.deadletters.triage import triage
from pushops.runtime import Runtime, runtime
from pushops.settings import load_settings

CALLS: Final = 7

# Forty campaigns whose recipients are known; what is no campaign's is one in eight.
_MESSAGES: Final[LiteralString] = """
INSERT INTO pushops.push_message (campaign_id, ttl, state, recipients, first_dispatched_at, expires_at, fanned_out_at,
                                  closed_at, payload_ref, payload_bytes)
SELECT 'campaign-' || n, 86400, 'closed', %(letters)s::int / 10, now(), now() + interval '1 day', now(), now(), 'x', 500
  FROM generate_series(1, 40) AS n"""
# Parked over three days, in the order of their ids as a night leaves them; four in a hundred are poison.
_LETTERS: Final[LiteralString] = """
INSERT INTO pushops.push_dlq
       (dlq_id, message_id, subscription_id, endpoint_hash, endpoint_host, push_service, owner, owner_no, campaign_id,
        payload_ref, attempt_count, first_attempt_at, last_attempt_at, terminal_status, error_class, error_code,
        error_snippet, original_ttl, expires_at, replayable, on_in_doubt, replay_key, parked_at)
SELECT uuidv7(age), m.message_id, u.id, sha256(uuid_send(u.id)), h.host, h.service, 'user-' || n, 1, m.campaign_id, 'x',
       10, now() + age - interval '1 hour', now() + age, CASE WHEN c.code = 'unreachable' THEN NULL ELSE c.status END,
       CASE WHEN c.poison THEN 'poison' ELSE 'retry_exhausted' END, c.code, repeat('The service said so. ', 5),
       t.ttl, now() + age + t.ttl * interval '1 second', n %% 9 <> 0, 'discard',
       pushops.replay_key(m.message_id, u.id), now() + age
  FROM generate_series(1, %(letters)s::int) AS n
 CROSS JOIN LATERAL (SELECT (n::float8 / %(letters)s::int - 1) * interval '3 days' AS age,
                            ('x' || substr(md5(n::text), 1, 7))::bit(28)::int AS dice) AS x
 CROSS JOIN LATERAL (SELECT gen_random_uuid() AS id WHERE n > 0) AS u
 CROSS JOIN LATERAL (SELECT CASE WHEN dice %% 8 = 0 THEN 3600 ELSE 86400 * (1 + dice %% 28) END AS ttl) AS t
  JOIN (VALUES (0, 'fcm.googleapis.com', 'fcm'), (1, 'updates.push.services.mozilla.com', 'mozilla'),
               (2, 'web.push.apple.com', 'apple'), (3, 'wns2-by3p.notify.windows.com', 'wns'))
       AS h (i, host, service) ON h.i = CASE WHEN dice %% 20 < 13 THEN 0 WHEN dice %% 20 < 17 THEN 1
                                             WHEN dice %% 20 < 19 THEN 2 ELSE 3 END
  JOIN (VALUES (0, 'unavailable', 503, false), (1, 'http_500', 500, false), (2, 'unreachable', NULL, false),
               (3, 'http_502', 502, false), (4, 'http_413', 413, true), (5, 'http_400', 400, true))
       AS c (i, code, status, poison) ON c.i = CASE WHEN dice %% 100 < 60 THEN 0 WHEN dice %% 100 < 80 THEN 1
                                                    WHEN dice %% 100 < 91 THEN 2 WHEN dice %% 100 < 96 THEN 3
                                                    WHEN dice %% 100 < 98 THEN 4 ELSE 5 END
  JOIN (SELECT message_id, campaign_id, row_number() OVER (ORDER BY message_id) - 1 AS i FROM pushops.push_message
         UNION ALL SELECT pushops.new_id(), NULL, 40) AS m
    ON m.i = CASE WHEN dice / 100 %% 8 = 0 THEN 40 ELSE dice / 800 %% 40 END
 ORDER BY n"""


def triage_ms(house: House, letters: int) -> tuple[float, float]:
    """Milliseconds that a triage of so many letters takes: after vacuum, and before it (where only ANALYZE was)."""
    started = time.monotonic()
    house.clone(people.TEMPLATE)
    with connected(house) as conn, runtime(load_settings()) as rt:
        conn.execute("SET synchronous_commit = off")
        conn.execute(_MESSAGES, {"letters": letters})
        conn.execute(_LETTERS, {"letters": letters})
        conn.execute("CHECKPOINT")
        conn.execute("ANALYZE")
        say(f"{letters:,} letters in {time.monotonic() - started:.0f} s")
        unvacuumed = _timed(rt, letters)
        conn.execute("VACUUM ANALYZE")
        vacuumed = _timed(rt, letters)
    say(f"triage: {vacuumed:.0f} ms, before vacuum {unvacuumed:.0f} ms")
    return vacuumed, unvacuumed


def _timed(rt: Runtime, letters: int) -> float:
    """Median of some calls, the first one left out: it reads the table into memory."""
    took = []
    for _ in range(CALLS + 1):
        started = time.monotonic()
        found = triage(rt)
        took.append((time.monotonic() - started) * 1000)
        assert found.letters == letters, f"expected {letters} letters in triage, got {found.letters}"
    return median(took[1:])
