"""What tests of the examples share: their tables and sections as shipped, rows, and the usual ways to clean up.

The sections come from the example's own ``pushops.toml``, and so do the tables from its ``schema.sql``.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import psycopg

from pushops.settings import Settings
from pushops.settings.own import OwnTable
from tests.sweeping import ROOT

Pg = psycopg.Connection[Any]

EXAMPLES: Final = ROOT / "examples"
WEBHOOKS: Final = "webhook-deliveries"
LINKS: Final = "short-links"


def make_tables(pg: Pg, example: str) -> None:
    pg.execute((EXAMPLES / example / "schema.sql").read_bytes())


def config(example: str) -> str:
    """What PUSHOPS_CONFIG is for a command or a worker."""
    return str(EXAMPLES / example / "pushops.toml")


def with_section(settings: Settings, example: str, **changes: Any) -> Settings:
    """The same settings with the example's section, for this process."""
    sections = tomllib.loads(Path(config(example)).read_text())["sweeps"]
    read = {name: OwnTable.model_validate(section | changes) for name, section in sections.items()}
    return settings.model_copy(update={"sweeps": read})


# Webhook deliveries ----------------------------------------------------------------------------------------------

# Rows of one kind; ``event`` says which. They are two months old and were over a month ago, unless said otherwise.
MAKE_DELIVERIES: Final = """
INSERT INTO public.webhook_delivery
       (endpoint_url, event, body, status, attempts, last_code, next_attempt_at, created_at, expires_at, legal_hold)
SELECT 'https://shop-' || n %% 7 || '.example/hooks', %(kind)s, repeat('x', 100), %(status)s, 5, 503,
       now() + %(next)s::interval, now() - interval '60 days' + n * interval '1 millisecond',
       now() + %(expires)s::interval + n * interval '1 millisecond', %(held)s
  FROM generate_series(1, %(count)s::int) AS n"""

FINISHED: Final[Mapping[str, Any]] = {"status": "delivered", "next": None, "expires": "-30 days", "held": False}
KINDS: Final[Mapping[str, Mapping[str, Any]]] = {
    "delivered": FINISHED,
    "abandoned": {**FINISHED, "status": "abandoned"},
    "awaits its retry": {**FINISHED, "status": "retrying", "next": "1 hour"},
    "asked for again": {**FINISHED, "next": "1 minute"},
    "not over yet": {**FINISHED, "expires": "1 day"},
    "on hold": {**FINISHED, "held": True},
}
OVER: Final = ("delivered", "abandoned")

# The cleanup that everybody writes first, and the one that is careful about locks: ids first, deletes later.
BY_AGE: Final = "DELETE FROM public.webhook_delivery WHERE created_at < now() - interval '30 days'"
FIND_IDS: Final = """
SELECT delivery_id FROM public.webhook_delivery
 WHERE status IN ('delivered', 'abandoned') AND next_attempt_at IS NULL AND expires_at < now()"""
BY_IDS: Final = "DELETE FROM public.webhook_delivery WHERE delivery_id = ANY (%s)"

REOPEN: Final = """
UPDATE public.webhook_delivery SET status = 'pending', next_attempt_at = now()
 WHERE delivery_id = (SELECT delivery_id FROM public.webhook_delivery WHERE event = 'delivered'
                       ORDER BY expires_at OFFSET %s LIMIT 1)
RETURNING delivery_id"""


def make_deliveries(pg: Pg, count: int, *kinds: str) -> None:
    make_tables(pg, WEBHOOKS)
    for kind in kinds or KINDS:
        pg.execute(MAKE_DELIVERIES, {**KINDS[kind], "kind": kind, "count": count})


def deliveries(pg: Pg) -> dict[str, int]:
    """How many are left of each kind."""
    return dict(pg.execute("SELECT event, count(*) FROM public.webhook_delivery GROUP BY 1").fetchall())


# Short links -----------------------------------------------------------------------------------------------------

# Links are known by their clicks, as where they are counted: a delete costs what it costs in such a table.
CLICKS: Final = """
CREATE TABLE public.click (
  code  text NOT NULL REFERENCES public.short_link ON DELETE CASCADE,
  at    timestamptz NOT NULL
);
CREATE INDEX click_code ON public.click (code)"""
MAKE_LINKS: Final = """
INSERT INTO public.short_link (code, target, owner, created_at, expires_at)
SELECT %(kind)s || '-' || substr(md5(n::text), 1, 12), 'https://shop.example/' || md5(n::text), %(kind)s,
       now() - interval '400 days', now() + %(expires)s::interval + n * interval '1 millisecond'
  FROM generate_series(1, %(count)s::int) AS n"""
MAKE_CLICKS: Final = "INSERT INTO public.click SELECT code, created_at FROM public.short_link WHERE owner = 'over'"
ONE_SHOT: Final = "DELETE FROM public.short_link WHERE expires_at < now() - interval '7 days'"


def make_links(pg: Pg, over: int, live: int) -> set[str]:
    """Make links that ended a month ago, with clicks, and others that did not end or never will; the latter's codes."""
    make_tables(pg, LINKS)
    pg.execute(CLICKS)
    parts = {"over": ("-30 days", over), "live": ("30 days", live - live // 2), "endless": (None, live // 2)}
    for kind, (expires, count) in parts.items():
        pg.execute(MAKE_LINKS, {"kind": kind, "expires": expires, "count": count})
    pg.execute(MAKE_CLICKS)
    pg.execute("ANALYZE public.short_link, public.click")
    return {code for code in codes(pg) if not code.startswith("over-")}


def codes(pg: Pg) -> set[str]:
    return {code for (code,) in pg.execute("SELECT code FROM public.short_link")}
