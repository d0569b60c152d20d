"""Guard, holds, push services and churn from a shell: shown first, done when told, in words and as JSON."""

import pytest

from pushops.delivery.observing import Kind
from pushops.ops import Ops
from pushops.runtime import Runtime
from pushops.settings import Settings
from pushops.subscriptions.evidence import Finding
from tests import ledger
from tests.answering import observe, settle, states, subscribers
from tests.commands import call
from tests.rows import Pg

G, A = Finding.GONE, Finding.ACCEPTED


@pytest.fixture
def lane(runtime: Runtime, pg: Pg) -> int:
    """A push service whose guard is open on 22 answers, of which one is proven wrong since."""
    made = ledger.lane(pg)
    ids = subscribers(pg, 30)
    settle(runtime, made, [(row, G) for row in ids[:22]], campaign_id="spring")
    settle(runtime, made, [(ids[0], A)])
    return made


@pytest.mark.usefixtures("lane")
def test_a_guard_is_listed_shown_and_accepted(pg: Pg, settings: Settings) -> None:
    listed = call("guard", "list", settings=settings)
    assert "22 answers in a row said dead" in " ".join(listed.out.split())
    (as_json,) = call("guard", "list", "--json", settings=settings).json
    assert (as_json["push_service"], as_json["pending"], as_json["why"]) == ("fcm", 21, "streak")
    shown = call("guard", "accept", "fcm", "--reason", "true", settings=settings)
    assert "21 answers would be believed" in shown.out
    assert states(pg) == {"active": 30}
    done = call("guard", "accept", "fcm", "--reason", "true", "--yes", settings=settings)
    assert "21 revoked" in done.out
    assert states(pg) == {"active": 9, "revoked": 21}
    assert "no guard is open" in call("guard", "list", settings=settings).out
    assert "accepted, settled" in " ".join(call("guard", "list", "--all", settings=settings).out.split())
    again = call("guard", "accept", "fcm", "--reason", "true", "--yes", settings=settings)
    assert (again.code, "expected a push service whose guard is open" in again.err) == (1, True)


@pytest.mark.usefixtures("lane")
def test_a_guard_is_rejected_with_a_reason(pg: Pg, settings: Settings) -> None:
    assert call("guard", "reject", "fcm", settings=settings).code == 2
    done = call("guard", "reject", "fcm", "--reason", "outage", "--yes", "--json", settings=settings).json
    assert (done["verdict"], done["done"], done["dry_run"], done["outcomes"]) == ("rejected", True, False, {})
    assert states(pg) == {"active": 30}
    assert pg.execute("SELECT reason FROM push_guard").fetchone() == ("outage",)


def test_a_hold_is_listed_and_released_by_the_beginning_of_its_id(runtime: Runtime, pg: Pg, settings: Settings) -> None:
    made = ledger.lane(pg)
    ledger.queue(pg, ledger.message(pg), subscribers(pg, 3), made)
    observe(runtime, made, Kind.DENIED, 5, code="vapid_auth")
    listed = call("hold", "list", settings=settings).out
    assert f"vapid_auth: {ledger.HOST}, key test" in " ".join(listed.split())
    (hold,) = call("hold", "list", "--json", settings=settings).json
    assert (hold["members"], hold["host"], hold["code"]) == (3, ledger.HOST, "vapid_auth")
    done = call("hold", "release", hold["hold_id"][:13], "--reason", "clock mended", settings=settings)
    assert "3 messages waited" in done.out
    assert "nothing is held" in call("hold", "list", settings=settings).out
    assert call("hold", "release", hold["hold_id"], "--reason", "x", settings=settings).code == 1


@pytest.mark.usefixtures("lane")
def test_an_application_judges_and_releases_with_the_same_verbs(runtime: Runtime, pg: Pg) -> None:
    ops = Ops(runtime)
    (guard,) = ops.list_guards()
    assert (guard.push_service, guard.pending) == ("fcm", 21)
    assert ops.accept_guard("fcm", reason="true", actor="test").dry_run
    assert ops.reject_guard("fcm", reason="outage", actor="test", dry_run=False).done
    assert ops.list_guards() == []
    observe(runtime, ledger.lane(pg, ledger.HOST, "other"), Kind.DENIED, 5, code="vapid_auth")
    (hold,) = ops.list_holds()
    assert ops.release_hold(hold.hold_id, actor="test", why="mended").vapid_key_id == "other"
    assert ops.list_holds() == []
    assert [provider.now.push_service for provider in ops.list_providers()] == ["fcm"]


@pytest.mark.usefixtures("lane")
def test_a_push_service_says_why_it_waits_and_is_paused_and_resumed(settings: Settings) -> None:
    (found,) = call("provider", "list", "--json", settings=settings).json["providers"]
    assert found["now"]["terminal"] == 22
    assert any(reason.startswith("guard open") for reason in found["waits"])
    assert call("provider", "pause", "fcm", "--reason", "release", "--json", settings=settings).json["changed"]
    assert "paused by" in " ".join(call("provider", "list", settings=settings).out.split())
    assert "was paused already" in call("provider", "pause", "fcm", settings=settings).out
    assert "goes on" in call("provider", "resume", "fcm", settings=settings).out
    assert call("provider", "pause", "fmc", settings=settings).code == 1
    call("provider", "pause", "spring", "--campaign", settings=settings)
    assert "campaign spring is paused" in call("provider", "list", settings=settings).out
    assert call("provider", "pause", "x", "--campaign", "--key", settings=settings).code == 2


@pytest.mark.usefixtures("lane")
def test_churn_is_counted_by_what_is_asked(settings: Settings) -> None:
    call("guard", "accept", "fcm", "--reason", "true", "--yes", settings=settings)
    (campaign,) = call("stats", "churn", "--by", "campaign", "--json", settings=settings).json
    assert (campaign["name"], campaign["left"], campaign["parts"]) == ("spring", 21, {"revoked": 21})
    (service,) = call("stats", "churn", "--json", settings=settings).json
    assert (service["name"], service["left"]) == ("fcm", 21)
    assert "gone" in call("stats", "churn", "--by", "reason", settings=settings).out
    assert (
        "nobody left"
        in call(
            "stats", "churn", "--by", "campaign", "--since", "2020-01-01", "--until", "2020-02-01", settings=settings
        ).out
    )
