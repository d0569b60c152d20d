"""What would have a shift send nothing, or end with everything in the air: labels that changed, slow renderers."""

import time
from datetime import timedelta
from pathlib import Path
from unittest.mock import Mock, patch

import psycopg
import pytest

from pushops.delivery import claiming, payloads
from pushops.delivery.rendering import Recipient
from pushops.sandbox.push import PushService
from pushops.settings import Settings
from tests.outgoing import Pg, ends, outgoing

pytestmark = pytest.mark.long

SLOW = 0.06


def slowly(payload: bytes, _recipient: Recipient) -> bytes:
    time.sleep(SLOW)
    return payload


def test_a_row_that_was_saved_under_another_label_of_its_host_is_sent(
    settings: Settings, pushed_to: PushService, pg: Pg
) -> None:
    """The operator gave the host another label; its lane has the first, which is what answers are counted under."""
    with outgoing(settings, pushed_to) as out:
        endpoints = out.register(pg, "fcm", 3)
        out.send()
        out.pump_all()
        pg.execute("UPDATE pushops.push_subscription SET push_service = 'ours' WHERE endpoint = %s", [endpoints[0]])
        message = out.send()
        out.pump_all()
        assert ends(pg, message) == {"accepted": 3}
        assert out.service.accepted(endpoints) == [2, 2, 2]


def test_a_renderer_that_takes_longer_than_a_claim_is_fresh_sends_a_few_at_a_time(
    settings: Settings, pushed_to: PushService, pg: Pg
) -> None:
    """Fifty rows take three seconds to render, and what was claimed is good for two."""
    with outgoing(settings, pushed_to, renderer=f"{__name__}:{slowly.__name__}") as out:
        endpoints = out.register(pg, "fcm", 60)
        message = out.send()
        began = time.monotonic()
        while ends(pg, message)["accepted"] < len(endpoints) and time.monotonic() < began + 20:
            out.pump(timedelta(seconds=3))
        assert ends(pg, message) == {"accepted": len(endpoints)}
        assert out.service.accepted(endpoints) == [1] * len(endpoints)
        assert pg.execute("SELECT max(attempts) FROM pushops.push_dispatch").fetchone() == (1,)


def test_a_rate_below_one_a_second_sends_now_and_then(settings: Settings, pushed_to: PushService, pg: Pg) -> None:
    with outgoing(settings, pushed_to, provider_rate=0.5) as out:
        out.register(pg, "fcm", 5)
        message = out.send()
        out.pump(timedelta(seconds=4))
        assert 1 <= ends(pg, message)["accepted"] <= 3


def test_a_shift_whose_rows_somebody_else_has_in_hand_does_not_spin(
    settings: Settings, pushed_to: PushService, pg: Pg, database_url: str
) -> None:
    with outgoing(settings, pushed_to) as out, psycopg.connect(database_url) as other:
        out.register(pg, "fcm", 3)
        message = out.send()
        other.execute("SELECT FROM pushops.push_dispatch FOR UPDATE")
        looks = Mock(wraps=claiming.take)
        with patch.object(claiming, "take", looks):
            assert out.pump(timedelta(seconds=2)).more
        assert looks.call_count < 50
        other.rollback()
        out.pump_all()
        assert ends(pg, message) == {"accepted": 3}


def test_nobody_is_rung_while_the_object_store_is_away(
    settings: Settings, pushed_to: PushService, pg: Pg, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shift after shift would claim and give back the same rows as fast as it can: beat looks again soon enough."""
    monkeypatch.setattr(payloads, "_cache", payloads._Cache(0))
    store = tmp_path / "payloads"
    with outgoing(settings, pushed_to, payload_store=f"file://{store}") as out:
        out.register(pg, "fcm", 60)
        message = out.send()
        store.rename(store.with_name("away"))
        store.write_text("a file where the folder was")
        done = out.pump()
        assert (done.rows, done.more) == (0, False)
        assert ends(pg, message) == {"due": 60}


def test_what_expires_between_claim_and_post_is_not_sent(settings: Settings, pushed_to: PushService, pg: Pg) -> None:
    """Nor given a second more than it had."""
    with outgoing(settings, pushed_to, in_flight=1, in_flight_total=1) as out:
        endpoints = out.register(pg, "fcm", 3)
        out.service.script("slow", host="fcm.googleapis.com", delay=1.3)
        message = out.send(ttl=1)
        out.pump(timedelta(seconds=4))
        assert ends(pg, message) == {"accepted": 1, "expired": 2}
        assert sum(out.service.received(endpoints)) == 1
