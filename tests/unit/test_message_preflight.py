"""Pre-flight: every fault at once, none of the content in any of them, and the limits to the byte."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from pushops.delivery.content import UnusablePayloadError, compose
from pushops.delivery.message import Audience, Urgency, hash_topic
from pushops.delivery.preflight import Checked, Draft, check
from pushops.settings import Settings
from tests.made import make_settings

NOW = datetime(2026, 3, 1, tzinfo=UTC)
MESSAGE = UUID("01890a5d-ac96-774b-bcce-b302099a8057")
KEYS = {"test": object()}


@pytest.fixture(scope="module")
def settings() -> Settings:
    return make_settings("postgresql://nobody@localhost/none")


def look(settings: Settings, keys: Any = None, **request: Any) -> Checked:
    return check(Draft(**{"payload": b"x", "everyone": True} | request), settings, KEYS if keys is None else keys, NOW)


def reasons(checked: Checked) -> list[str]:
    return [fault.reason for fault in checked.faults]


@pytest.mark.parametrize(
    ("payload", "faults", "warnings"),
    [
        (b"x" * 3993, [], ["payload_over_bridge"]),
        (b"x" * 3994, ["payload_too_large"], []),
        ("\u00e9" * 1996 + "x", [], ["payload_over_bridge"]),  # bytes count, not characters
        ("\u00e9" * 1997, ["payload_too_large"], []),
        (b"x" * 2744, [], []),
        (b"x" * 2745, [], ["payload_over_bridge"]),
        (b"", [], []),
    ],
)
def test_the_limits_of_a_payload_are_exact(
    settings: Settings, payload: Any, faults: list[str], warnings: list[str]
) -> None:
    found = look(settings, payload=payload)
    assert reasons(found) == faults
    assert [each.reason for each in found.warnings] == warnings


def test_the_stamp_counts_towards_the_limit(settings: Settings) -> None:
    empty = len(compose({"t": ""}, MESSAGE))
    assert reasons(look(settings, payload={"t": "x" * (3993 - empty)})) == []
    assert reasons(look(settings, payload={"t": "x" * (3994 - empty)})) == ["payload_too_large"]
    assert reasons(look(settings, payload={"t": "x" * (3994 - empty)}, stamp=False)) == []


def test_a_mapping_carries_its_messages_id() -> None:
    assert json.loads(compose({"title": "\u00e9"}, MESSAGE)) == {"title": "\u00e9", "pushops": {"id": str(MESSAGE)}}
    assert compose({"title": "\u00e9"}, MESSAGE, stamp=False) == '{"title":"\u00e9"}'.encode()


@pytest.mark.parametrize("payload", [b'{"a":1}', '{"a":1}', bytearray(b'{"a":1}')])
def test_bytes_and_text_go_out_as_they_are(payload: Any) -> None:
    assert compose(payload, MESSAGE) == b'{"a":1}'


@pytest.mark.parametrize(
    ("payload", "stamp"),
    [
        (None, None),
        (7, None),
        ("secret \ud800", None),
        (b"secret", True),
        ({"a": {"secret"}}, None),
        ({"a": float("nan"), "secret": 1}, None),
        ({"pushops": "secret"}, None),
        ({1: "secret", "pushops": 1}, None),
    ],
)
def test_a_payload_that_cannot_be_is_refused_without_being_repeated(
    settings: Settings, payload: Any, stamp: bool | None
) -> None:
    with pytest.raises(UnusablePayloadError):
        compose(payload, MESSAGE, stamp=stamp)
    found = look(settings, payload=payload, stamp=stamp)
    assert reasons(found) == ["bad_payload"]
    assert "secret" not in str(found.faults)


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        ({"ttl": 0}, "bad_ttl"),
        ({"ttl": -1}, "bad_ttl"),
        ({"ttl": 2_419_201}, "bad_ttl"),
        ({"ttl": 10**40}, "bad_ttl"),
        ({"ttl": timedelta(days=28, seconds=1)}, "bad_ttl"),
        ({"ttl": timedelta(milliseconds=999)}, "bad_ttl"),
        ({"ttl": True}, "bad_ttl"),
        ({"ttl": 3.5}, "bad_ttl"),
        ({"ttl": "60"}, "bad_ttl"),
        ({"urgency": "urgent"}, "unknown_urgency"),
        ({"urgency": None}, "unknown_urgency"),
        ({"urgency": ["high"]}, "unknown_urgency"),
        ({"on_ambiguous": "x"}, "unknown_on_ambiguous"),
        ({"on_in_doubt": "x"}, "unknown_on_in_doubt"),
        ({"not_before": datetime(2026, 3, 2)}, "bad_not_before"),  # noqa: DTZ001  (that it is naive is the point)
        ({"not_before": "2026-03-02"}, "bad_not_before"),
        ({"not_before": NOW + timedelta(days=30, seconds=1)}, "too_far_ahead"),
        ({"topic": ""}, "bad_topic"),
        ({"campaign": "a\x00b"}, "bad_campaign"),
        ({"campaign": 7}, "bad_campaign"),
        ({"idempotency_key": "\ud800"}, "bad_idempotency_key"),
        ({"everyone": False}, "no_audience"),
        ({"user": "ann"}, "bad_audience"),
        ({"tags": ["x"]}, "bad_audience"),
        ({"everyone": False, "tags": []}, "bad_tags"),
        ({"everyone": False, "tags": 7}, "bad_tags"),
        ({"everyone": False, "tags": ["a\x00"]}, "bad_tags"),
        ({"everyone": False, "ids": []}, "bad_ids"),
        ({"everyone": False, "ids": ["nonsense"]}, "bad_ids"),
        ({"everyone": False, "ids": "nonsense"}, "bad_ids"),
        ({"everyone": False, "ids": [MESSAGE] * 10_001}, "bad_ids"),
        ({"everyone": False, "user": ""}, "bad_user"),
        ({"everyone": False, "user": 7}, "bad_user"),
        ({"everyone": False, "locale": "\x00"}, "bad_locale"),
    ],
)
def test_what_no_push_service_and_no_ledger_takes_is_refused(
    settings: Settings, request_: dict[str, Any], reason: str
) -> None:
    assert reasons(look(settings, **request_)) == [reason]


@pytest.mark.parametrize(
    ("ttl", "seconds"),
    [(1, 1), (2_419_200, 2_419_200), (timedelta(hours=1), 3600), (timedelta(seconds=1.9), 1), (None, 86_400)],
)
def test_a_ttl_is_whole_seconds(settings: Settings, ttl: Any, seconds: int) -> None:
    found = look(settings, ttl=ttl)
    assert (reasons(found), found.message.ttl) == ([], seconds)


def test_all_faults_are_told_at_once(settings: Settings) -> None:
    broken = settings.model_copy(update={"vapid_subject": "mailto:me@localhost"})
    found = look(broken, keys={}, payload=b"x" * 4000, ttl=0, urgency="x", everyone=False)
    assert reasons(found) == [
        "payload_too_large", "no_vapid_key", "bad_vapid_subject", "no_audience", "bad_ttl", "unknown_urgency",
    ]  # fmt: skip


@pytest.mark.parametrize("subject", [None, "", "me@example.com", "mailto:me@localhost", "https://push.invalid/"])
def test_a_subject_that_reaches_nobody_is_refused(settings: Settings, subject: str | None) -> None:
    assert reasons(look(settings.model_copy(update={"vapid_subject": subject}))) == ["bad_vapid_subject"]


def test_a_topic_becomes_32_characters_that_a_header_takes() -> None:
    found = hash_topic("scores of match 17 \u00e9")
    assert len(found) == 32
    assert set(found) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")
    assert found != hash_topic("scores of match 18 \u00e9")


def test_an_audience_is_the_same_in_whatever_order_it_is_named(settings: Settings) -> None:
    one = look(settings, everyone=False, tags=["b", "a", "b"], ids=[str(MESSAGE), MESSAGE]).message.audience
    other = look(settings, everyone=False, tags=("a", "b"), ids=[MESSAGE]).message.audience
    assert one == other == Audience(tags=("a", "b"), ids=(MESSAGE,))


def test_words_are_taken_as_text_or_as_themselves(settings: Settings) -> None:
    assert look(settings, urgency=Urgency.HIGH).message.urgency is Urgency.HIGH
    assert look(settings, urgency="very-low").message.urgency is Urgency.VERY_LOW


@pytest.mark.parametrize("everyone", ["false", "no", 1, b"", None])
def test_everyone_is_true_or_false_and_no_word_for_it(settings: Settings, everyone: Any) -> None:
    """What a form or a JSON body calls false is a text, and true to Python."""
    assert "bad_audience" in reasons(look(settings, everyone=everyone))
