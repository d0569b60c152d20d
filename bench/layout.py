"""The two tables that contenders meet: one in key order, one as years of use leave it. Both hold the same rows.

*Key order*: rows were inserted as they stand, scrubbed tombstones among live rows; the heap follows both the primary
key and the walked index. *Lived-in*: all rows were inserted live, ended in a random other order over many
transactions, and were scrubbed by the real sweep, with vacuum between: every tombstone has moved twice.
"""

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, LiteralString

import psycopg
from pydantic import SecretStr

from bench.house import House, say
from pushops.db.migrate import migrate
from pushops.retention.policies import SCRUB_TOMBSTONES, SWEEPS
from pushops.runtime import Runtime, runtime
from pushops.settings import Settings, load_settings
from pushops.sweeps import service
from pushops.sweeps.dispatch import Order
from pushops.sweeps.work import work

KEY_ORDER: Final = "key_order"
LIVED_IN: Final = "lived_in"
LAYOUTS: Final = (KEY_ORDER, LIVED_IN)

LIVE_EVERY: Final = 5  # every fifth row is live: 80 % are tombstones past their retention
ENDED_AT_ONCE: Final = 500  # rows that end in one transaction, as the answers to a fan-out come in
SCRUBBING: Final = Order("bench", force=True)
SEASONS: Final = 4  # so often rows end, are vacuumed, scrubbed and vacuumed again

# Row i of :rows, born evenly over 240 days that ended 160 days ago. Endpoints are as long as FCM's are.
_BORN: Final[LiteralString] = """
SELECT i, born, ids.id, hosts.label AS push_service, md5(i::text) AS dice,
       hosts.prefix || encode(sha256((%(salt)s::text || 'a' || i)::bytea), 'hex')
                    || encode(sha256((%(salt)s::text || 'b' || i)::bytea), 'hex') AS endpoint,
       CASE WHEN i %% 10 < 7 THEN 'user-' || (i::bigint * 7919) %% (%(rows)s::bigint / 3 + 1) END AS user_id,
       'https://shop-' || i %% 3 || '.example.org' AS origin
  FROM generate_series(1, %(rows)s::int) AS i,
       LATERAL (SELECT '-400 days'::interval + (i::float8 / %(rows)s::int) * '240 days'::interval AS shift) AS shifts,
       LATERAL (SELECT uuidv7(shift) AS id, now() + shift AS born) AS ids,
       LATERAL (SELECT i * 7 %% 20 AS n) AS draws,
       LATERAL (SELECT CASE WHEN n < 13 THEN 'fcm' WHEN n < 17 THEN 'mozilla' WHEN n < 19 THEN 'apple' ELSE 'wns' END,
                       CASE WHEN n < 13 THEN 'https://fcm.googleapis.com/fcm/send/'
                            WHEN n < 17 THEN 'https://updates.push.services.mozilla.com/wpush/v2/'
                            WHEN n < 19 THEN 'https://web.push.apple.com/'
                            ELSE 'https://db5p.notify.windows.com/w/?token=' END) AS hosts (label, prefix)"""

_REASON: Final[LiteralString] = """
CASE WHEN i %% 20 < 12 THEN 'gone' WHEN i %% 20 < 15 THEN 'unsubscribed' WHEN i %% 20 < 18 THEN 'aged_out'
     ELSE 'voted_out' END"""

# Live rows and scrubbed tombstones in one statement, so that both lie among each other.
_INSERT: Final[LiteralString] = (
    """
INSERT INTO pushops.push_subscription
       (id, endpoint_hash, endpoint, push_service, p256dh, auth_sealed, auth_key_version, vapid_key_id, user_id, tags,
        user_agent, locale, origin, state, state_since, created_at, registered_at, last_seen_at, last_success_at,
        last_tried_at, previous_state, end_reason, revoked_at, deleted_at, scrubbed_at)
SELECT id, sha256(endpoint::bytea), CASE WHEN live THEN endpoint END, push_service,
       CASE WHEN live THEN 'B' || substr(dice || dice || dice, 1, 86) END,
       CASE WHEN live THEN substr(sha256(dice::bytea) || sha256(endpoint::bytea), 1, 45) END,
       CASE WHEN live THEN 1 END, 'bench', user_id, ARRAY['news'],
       CASE WHEN live THEN 'Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0' END,
       CASE WHEN live THEN 'en-GB' END, origin, CASE WHEN live THEN 'active' ELSE 'revoked' END, born, born, born,
       CASE WHEN live THEN now() - '1 day'::interval ELSE ended END,
       CASE WHEN live THEN now() - '1 day'::interval ELSE ended END,
       CASE WHEN live THEN now() - '1 day'::interval ELSE ended END, CASE WHEN NOT live THEN 'active' END,
       CASE WHEN NOT live THEN """
    + _REASON
    + """ END, CASE WHEN NOT live THEN ended END,
       CASE WHEN NOT live THEN ended END, CASE WHEN NOT live THEN ended + '3 days'::interval END
  FROM (SELECT *, i %% %(live_every)s::int = 0 AS live,
               born + '50 days'::interval AS ended FROM ("""
    + _BORN
    + ") AS born) AS rows ORDER BY i"
)

# Which row ends when: as good as random against the order in which they were inserted.
_ENDINGS: Final[LiteralString] = """
CREATE UNLOGGED TABLE public.ending AS
SELECT id, n, (now() - '340 days'::interval) + (n::float8 / count(*) OVER ()) * '240 days'::interval AS ended
  FROM (SELECT id, row_number() OVER (ORDER BY md5(i::text)) AS n
          FROM (SELECT id, row_number() OVER (ORDER BY id) AS i FROM pushops.push_subscription) AS all_rows
         WHERE i %% %(live_every)s::int <> 0) AS shuffled"""

_END: Final[LiteralString] = (
    """
UPDATE pushops.push_subscription AS s
   SET previous_state = state, state = 'revoked', state_since = ended, revoked_at = ended, deleted_at = ended,
       last_seen_at = least(last_seen_at, ended), end_reason = """
    + _REASON.replace("i %%", "n %%")
    + """, user_agent = NULL, locale = NULL
  FROM public.ending AS e
 WHERE e.n > %(after)s::bigint AND e.n <= %(upto)s::bigint AND s.id = e.id"""
)


def build(house: House, rows: int) -> None:
    """Make a template database for each layout, both at once."""
    made = [_migrated(house, layout) for layout in LAYOUTS]  # one after the other: alembic keeps globals
    with ThreadPoolExecutor(len(LAYOUTS)) as threads:
        for each in [threads.submit(_fill, *pair, rows) for pair in zip(LAYOUTS, made, strict=True)]:
            each.result()


def build_one(house: House, layout: str, name: str, rows: int) -> None:
    """Make one template, of a layout but under a name of its own."""
    _fill(layout, _migrated(house, name), rows)


def _migrated(house: House, name: str) -> Settings:
    url = SecretStr(house.postgres.create_database(name))
    settings = load_settings(database_url=url, sweep_pause_ms=0, sweep_batch_rows=20_000, sweep_budget_ms=3_600_000)
    migrate(settings)
    return settings


def _fill(layout: str, settings: Settings, rows: int) -> None:
    started = time.monotonic()
    assert settings.database_url is not None
    url = settings.database_url.get_secret_value()
    with psycopg.connect(url, autocommit=True, options="-c synchronous_commit=off") as conn:
        if layout == KEY_ORDER:
            _insert(conn, rows, LIVE_EVERY)
        else:
            with runtime(settings) as rt:
                _live_a_life(conn, rt, rows)
        conn.execute("CHECKPOINT")  # vacuum marks nothing as visible whose asynchronous commit is not flushed yet
        conn.execute("VACUUM ANALYZE")
    say(f"{layout}: {rows:,} rows in {time.monotonic() - started:.0f} s")


def _live_a_life(conn: psycopg.Connection[Any], rt: Runtime, rows: int) -> None:
    _insert(conn, rows, 1)
    conn.execute(_ENDINGS, {"live_every": LIVE_EVERY})
    conn.execute("CREATE UNIQUE INDEX ON public.ending (n)")
    conn.execute("VACUUM ANALYZE")
    ended = rows - rows // LIVE_EVERY
    for season in range(SEASONS):
        _end(conn, ended * season // SEASONS, ended * (season + 1) // SEASONS)
        conn.execute("VACUUM pushops.push_subscription")
        _scrub(rt)
        conn.execute("VACUUM pushops.push_subscription")
    conn.execute("DROP TABLE public.ending")


def _end(conn: psycopg.Connection[Any], first: int, last: int) -> None:
    for after in range(first, last, ENDED_AT_ONCE):
        conn.execute(_END, {"after": after, "upto": min(after + ENDED_AT_ONCE, last)})


def _scrub(rt: Runtime) -> None:
    """The real sweep, in this process: no broker, no second worker."""
    run = service.dispatch(rt, SCRUB_TOMBSTONES, None, SCRUBBING).run
    assert run is not None
    while service.show_run(rt, run.run_id)[0].closed_at is None:
        if not work(rt, SWEEPS, run.run_id).batches:
            service.dispatch(rt, SCRUB_TOMBSTONES, None, SCRUBBING)


def grow(conn: psycopg.Connection[Any], rows: int) -> None:
    """More tombstones behind those of the key order, so that a purge at its default pace outlasts a window."""
    if rows:
        _insert(conn, rows, rows + 1, salt="grown")


def _insert(conn: psycopg.Connection[Any], rows: int, live_every: int, salt: str = "") -> None:
    conn.execute(_INSERT, {"rows": rows, "live_every": live_every, "salt": salt})
