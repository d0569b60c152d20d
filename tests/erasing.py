"""What tests of erasures share: one person in every store there is, and a look at all of it afterwards."""

import base64
import subprocess
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

import psycopg

from pushops.deadletters import spool
from pushops.deadletters.letter import ErrorClass, Letter
from pushops.delivery import objects
from pushops.erasure.sweeping import APPLY_ERASURES
from pushops.runtime import Runtime
from pushops.sandbox.binaries import postgres_programs
from pushops.subscriptions import service
from pushops.subscriptions.identity import endpoint_hash
from pushops.sweeps.store import RunRow
from tests.browser import new_endpoint, subscribe
from tests.letters import park_letter
from tests.sending import fan_out, send_to
from tests.sweepdb import drive

Pg = psycopg.Connection[Any]
ANN: Final = "ann-4711-secret"
BOB: Final = "bob-1234"
IMPORT: Final = UUID(int=7)


@dataclass(frozen=True)
class Traces:
    """Ann's endpoints: ``live`` and ``ended`` are hers, ``former`` is Bob's by now."""

    live: str
    ended: str
    former: str
    to_ann: UUID
    to_all: UUID

    @property
    def hers(self) -> list[bytes]:
        return [endpoint_hash(self.live), endpoint_hash(self.ended)]


def apply(rt: Runtime) -> RunRow:
    """The sweep, to its end."""
    return drive(rt, APPLY_ERASURES)


def leave_traces(rt: Runtime, pg: Pg) -> Traces:
    """Ann in every store: rows, trail, ledger, letters, payloads, evidence, audit, staging, Redis and the spool."""
    live, ended, former = (new_endpoint() for _ in range(3))
    for each in (live, ended, former):
        service.save_subscription(rt, subscribe(each), user_id=ANN, tags=["vip"], user_agent="UA")
    to_all = send_to(rt, b"to everybody")
    fan_out(rt, to_all.message_id)
    to_ann = send_to(rt, b"to ann alone", user=ANN, idempotency_key=f"order-{ANN}")
    one = pg.execute("SELECT id FROM push_subscription WHERE endpoint_hash = %s", [endpoint_hash(live)]).fetchone()
    assert one is not None
    send_to(rt, b"by id", ids=[one[0]])
    service.touch(rt, live)
    service.unsubscribe(rt, endpoint=ended)
    service.save_subscription(rt, subscribe(former), user_id=BOB)
    _put_rows(pg, endpoint_hash(live), one[0], to_all.message_id)
    spool.append(rt.settings, [a_letter(endpoint_hash(live), to_ann.message_id)])
    torn = spool.line(a_letter(endpoint_hash(live), to_ann.message_id))[:-9]
    broken = spool.folder(rt.settings) / "1-0.broken"
    broken.write_bytes(b"nobody's\n" + torn + b"\n")
    broken.chmod(0o600)
    return Traces(live, ended, former, to_ann.message_id, to_all.message_id)


def a_letter(digest: bytes, message_id: UUID, **changes: Any) -> Letter:
    now = datetime.now(UTC) - timedelta(minutes=1)
    made = Letter(
        message_id=message_id,
        subscription_id=UUID(int=5),
        endpoint_hash=digest,
        endpoint_host="fcm.googleapis.com",
        push_service="fcm",
        owner=ANN,
        owner_no=1,
        campaign_id=None,
        payload_ref=None,
        attempt_count=1,
        first_attempt_at=now,
        last_attempt_at=now,
        terminal_status=503,
        error_class=ErrorClass.EXHAUSTED,
        error_code="unavailable",
        error_snippet="",
        original_ttl=3600,
        expires_at=now + timedelta(hours=1),
        replayable=True,
        on_in_doubt="discard",
        in_doubt=False,
    )
    return replace(made, **changes)


def _put_rows(pg: Pg, digest: bytes, row_id: UUID, message_id: UUID) -> None:
    known = rf"'\x{digest.hex()}'::bytea"
    park_letter(pg, endpoint_hash=known, owner=f"'{ANN}'")
    park_letter(pg, owner=f"'{ANN}'")
    pg.execute("UPDATE push_dispatch SET history = '[{\"n\": 1}]', snippet = 'x' WHERE endpoint_hash = %s", [digest])
    pg.execute(
        "INSERT INTO push_unparked (message_id, endpoint_hash, error_class) VALUES (%s, %s, 'poison')",
        [message_id, digest],
    )
    pg.execute(
        "INSERT INTO push_evidence (push_service, subscription_id, endpoint_hash, registration_no, finding, started_at,"
        " state) VALUES ('fcm', %s, %s, 1, 'vote', now(), 'applied')",
        [row_id, digest],
    )
    pg.execute("INSERT INTO push_throttle (endpoint_hash, until) VALUES (%s, now() + interval '1 hour')", [digest])
    pg.execute("CREATE TABLE staged PARTITION OF import_staging FOR VALUES IN ('00000000-0000-0000-0000-000000000007')")
    pg.execute(
        "INSERT INTO import_staging (import_id, ordinal, endpoint_hash, endpoint, push_service, p256dh, auth_sealed,"
        " auth_key_version, content_encoding, user_id) SELECT %s, 1, endpoint_hash, endpoint, push_service, p256dh,"
        " auth_sealed, auth_key_version, content_encoding, user_id FROM push_subscription WHERE id = %s",
        [IMPORT, row_id],
    )


def everything(rt: Runtime) -> str:
    """A dump of the whole database, the names and contents of all objects, Redis and the spool, as text."""
    url = rt.settings.database_url
    assert url is not None
    command = [str(postgres_programs() / "pg_dump"), "--inserts", url.get_secret_value()]
    dump = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    return "\n".join([dump, in_redis(rt), in_spool(rt)])


def in_redis(rt: Runtime) -> str:
    if rt.redis is None:
        return ""
    keys: Any = rt.redis.keys("*")
    return "\n".join(key.decode() for key in keys)


def in_spool(rt: Runtime) -> str:
    where = spool.folder(rt.settings)
    return "\n".join(path.read_text() for path in where.glob("*")) if where.is_dir() else ""


def has_object(rt: Runtime, ref: str) -> bool:
    return any(ref in page for page in objects.pages(rt.settings))


def forms(digest: bytes) -> list[str]:
    """How a hash may be written down."""
    return [digest.hex(), base64.b64encode(digest).decode(), base64.urlsafe_b64encode(digest).decode().rstrip("=")]
