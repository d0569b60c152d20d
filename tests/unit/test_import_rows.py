"""Rows of other stores: what they call things, what is read from them, what is refused, and the shorter way to it."""

import csv
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pushops.errors import RefusedError
from pushops.importing.checking import Checker, checker
from pushops.importing.dumping import _flat
from pushops.importing.names import field_of
from pushops.importing.quick import Quick
from pushops.importing.shapes import Found, read_row
from pushops.importing.sources import LONGEST, Lines, Source, columns_of, parse_names, read_file
from pushops.importing.store.staging import COLUMNS
from pushops.importing.words import Rules
from pushops.subscriptions import base64url
from pushops.subscriptions.keychain import keychain
from pushops.subscriptions.rejection import RejectionError
from pushops.subscriptions.sealing import Sealed
from tests.browser import subscribe
from tests.made import make_settings

NOW: Final = datetime(2026, 3, 1, 12, tzinfo=UTC)
RULES: Final = Rules(NOW)
BROWSER: Final = subscribe()
ENDPOINT: Final = BROWSER["endpoint"]
P256DH, AUTH = BROWSER["keys"]["p256dh"], BROWSER["keys"]["auth"]
TAIL: Final = ENDPOINT.removeprefix("https://fcm.googleapis.com/fcm/send/")


def opened(data: bytes, how: str = "auto", **names: str) -> Source:
    return read_file(io.BytesIO(data), how, names)


def read(data: bytes, rules: Rules = RULES, **names: str) -> list[Found | str]:
    """Each row, or why it was refused."""
    source = opened(data, **names)
    found: list[Found | str] = []
    for _, raw in source.rows:
        try:
            found.append(read_row(source.form.row(raw), rules))
        except RejectionError as error:
            found.append(str(error.rejected.reason))
    return found


def read_one(row: Mapping[str, Any], rules: Rules = RULES) -> Found | str:
    (found,) = read(json.dumps(row).encode(), rules)
    return found


def as_csv(*rows: Mapping[str, Any], delimiter: str = ",") -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), delimiter=delimiter)
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


# Lines


def test_lines_keep_their_numbers_whatever_stands_between() -> None:
    long = b"x" * (LONGEST * 3)
    source = opened(b'{"endpoint": "a"}\n\n  \nnot json\n' + long + b'\n[1]\n{"endpoint": "b"}')
    rows = list(source.rows)
    assert [number for number, _ in rows] == [1, 4, 5, 6, 7]
    assert rows[2][1] is None


@pytest.mark.parametrize("length", [LONGEST - 1, LONGEST, LONGEST + 1])
def test_a_line_of_just_the_longest_length_ends_where_it_ends(length: int) -> None:
    source = opened(b"{}" + b" " * (length - 3) + b"\n" + b"{}\n")
    assert [number for number, _ in source.rows] == [1, 2]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"endpoint": "a", "tags": "[news"}', "not_json"),
        (b'{"endpoint": "a", "tags": 5}', "bad_tags"),
        (b'{"endpoint": "a", "created_at": "2026-01-01"}', "bad_time"),
        (b'{"endpoint": "a", "created_at": 5}', "bad_time"),
        (b'{"endpoint": "a", "created_at": true}', "bad_time"),
        (b'{"endpoint": "a", "created_at": "1989-12-31T23:59:59Z"}', "bad_time"),
        (b'{"endpoint": "a", "created_at": "2999-01-01T00:00:00Z"}', "bad_time"),
        (b'{"endpoint": "a", "created_at": "9999-12-31T23:59:59-12:00"}', "bad_time"),
        (b'{"endpoint": "a", "created_at": "0001-01-01T00:00:00+14:00"}', "bad_time"),
        (b'{"endpoint": "a", "seen_at": "soon"}', "bad_time"),
        (b'{"endpoint": "a", "active": false}', "inactive"),
        (b'{"subscription": "{"}', "not_json"),
        (b'{"\xff\xfe', "not_json"),
        (b"{" * 50_000, "not_json"),
    ],
)
def test_a_line_that_cannot_be_meant_is_refused_with_its_reason(line: bytes, reason: str) -> None:
    assert read(line) == [reason]


def test_an_array_is_no_line_and_says_what_makes_lines_of_it() -> None:
    with pytest.raises(RefusedError, match="jq -c"):
        opened(b' [{"endpoint": "a"}]')


# Shapes


SHAPES: Final[Mapping[str, Mapping[str, Any]]] = {
    "the browser's object": BROWSER | {"user": "7"},
    "pywebpush, beside its owner": {"subscription_info": BROWSER, "user_id": 7},
    "as text in a column": {"subscription": json.dumps(BROWSER), "user_id": "7"},
    "web-push, flat": {"endpoint": ENDPOINT, "p256dh": P256DH, "auth": AUTH, "userId": 7},
    "PHP's members": {"endpoint": ENDPOINT, "publicKey": P256DH, "authToken": AUTH, "user": 7},
    "Laravel's columns": {"endpoint": ENDPOINT, "public_key": P256DH, "auth_token": AUTH, "subscribable_id": 7},
    "django-push-notifications": {
        "registration_id": ENDPOINT, "p256dh": P256DH, "auth": AUTH, "browser": "CHROME", "user_id": 7, "active": "t",
    },
    "django-push-notifications before 3.0": {
        "registration_id": TAIL, "p256dh": P256DH, "auth": AUTH, "browser": "CHROME", "user_id": 7, "active": True,
    },
    "OneSignal": {
        "identifier": ENDPOINT, "web_p256": P256DH, "web_auth": AUTH, "external_user_id": 7, "invalid_identifier": "f",
    },
    "columns with dots": {"endpoint": ENDPOINT, "keys.p256dh": P256DH, "keys.auth": AUTH, "user": 7},
}  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
def test_every_librarys_shape_is_the_same_subscription_of_the_same_user(name: str) -> None:
    found = read_one(SHAPES[name])
    assert isinstance(found, Found)
    inside = dict(found.candidate.subscription)  # type: ignore[call-overload]
    assert (inside["endpoint"], inside["keys"], found.candidate.user_id) == (ENDPOINT, BROWSER["keys"], "7")


@pytest.mark.parametrize("name", [name for name, shape in SHAPES.items() if "keys" not in shape and len(shape) > 2])
@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_the_same_shapes_stand_in_columns(name: str, delimiter: str) -> None:
    (found,) = read(b"\xef\xbb\xbf" + as_csv(SHAPES[name], delimiter=delimiter))
    assert isinstance(found, Found)
    inside = dict(found.candidate.subscription)  # type: ignore[call-overload]
    assert (inside["endpoint"], inside["keys"], found.candidate.user_id) == (ENDPOINT, BROWSER["keys"], "7")


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ({"active": "false"}, "inactive"),
        ({"active": 0}, "inactive"),
        ({"active": " False "}, "inactive"),
        ({"invalid_identifier": "t"}, "inactive"),
        ({"active": "disabled"}, "bad_flag"),
        ({"invalid_identifier": "gone"}, "bad_flag"),
    ],
)
def test_what_the_other_store_had_ended_does_not_come_back(members: dict[str, Any], reason: str) -> None:
    assert read_one(BROWSER | members) == reason


@pytest.mark.parametrize(
    "value", ["2026-01-02T03:04:05Z", "2026-01-02 03:04:05 UTC", "2026-01-02 03:04:05+00", 1767323045, 1767323045000]
)
def test_a_time_is_read_in_the_forms_that_stores_have(value: object) -> None:
    for row in (BROWSER | {"created_at": value}, BROWSER | {"date_created": str(value)}):
        found = read_one(row)
        assert isinstance(found, Found)
        assert found.candidate.created_at == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def test_a_time_without_a_zone_is_refused_unless_it_is_said_to_be_utc() -> None:
    row = BROWSER | {"created_at": "2026-01-02 03:04:05"}
    found = read_one(row, replace(RULES, utc=True))
    assert read_one(row) == "bad_time"
    assert isinstance(found, Found)
    assert found.candidate.created_at == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def test_another_hosts_clock_may_be_a_little_ahead_and_the_row_is_made_now() -> None:
    found = read_one(BROWSER | {"created_at": (NOW + timedelta(minutes=1)).isoformat()})
    assert isinstance(found, Found)
    assert found.candidate.created_at == NOW


def test_the_latest_time_of_a_row_decides_between_rows() -> None:
    found = read_one(BROWSER | {"created_at": "2025-01-01T00:00:00Z", "last_active": "2026-02-01T00:00:00Z"})
    assert isinstance(found, Found)
    assert (found.recency, found.candidate.created_at) == (
        datetime(2026, 2, 1, tzinfo=UTC),
        datetime(2025, 1, 1, tzinfo=UTC),
    )


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        (["a"], ["a"]),
        ("a, b", ["a", "b"]),
        ('["a", "b"]', ["a", "b"]),
        ({"plan": "pro", "age": 9}, ["plan:pro", "age:9"]),
        ('{"plan": "pro"}', ["plan:pro"]),
    ],
)
def test_tags_come_as_lists_objects_and_text(tags: object, expected: list[str]) -> None:
    found = read_one(BROWSER | {"tags": tags})
    assert isinstance(found, Found)
    assert found.candidate.tags == expected


def test_a_users_number_becomes_text_and_a_truth_value_does_not() -> None:
    assert [read_row({"user": user}, RULES).candidate.user_id for user in (7, UUID(int=7), True)] == [
        "7",
        "00000000-0000-0000-0000-000000000007",
        True,
    ]


# Columns


def test_a_row_of_another_width_is_refused_and_the_next_is_read() -> None:
    found = read(b"endpoint,user\na,1\nb\nc,2,3\nd,4\n")
    assert [row if isinstance(row, str) else row.candidate.user_id for row in found] == ["1", "bad_row", "bad_row", "4"]


def test_a_quote_that_nobody_closes_costs_the_rows_in_it_and_not_the_memory() -> None:
    rows = b"".join(b"endpoint-%d,1\n" % number for number in range(20_000))
    found = read(b'endpoint,user\n"never closed,1\n' + rows)
    assert found[0] == "bad_row"
    assert isinstance(found[-2], Found)


def test_broken_text_is_refused_by_the_door_and_stops_nothing() -> None:
    good = as_csv(SHAPES["web-push, flat"])
    checked = check(good + good.splitlines()[1].replace(b"7", b"\xff") + b"\n")
    assert (checked.rows, [refusal.found.reason for refusal in checked.refusals]) == (1, ["bad_name"])


def test_without_a_column_for_the_endpoint_the_columns_are_named() -> None:
    with pytest.raises(RefusedError, match="got push_url, who: see --map"):
        opened(b"push_url,who\n")
    (found,) = read(b"push_url,who\nx,y\n", push_url="endpoint", who="user")
    assert isinstance(found, Found)
    assert found.candidate.user_id == "y"


@pytest.mark.parametrize("names", [{}, {"who": "user"}])
@pytest.mark.parametrize("row", [(ENDPOINT, P256DH, AUTH), (P256DH, AUTH), (json.dumps(BROWSER),)])
def test_a_first_line_that_is_a_row_is_not_shown(row: tuple[str, ...], names: dict[str, str]) -> None:
    with pytest.raises(RefusedError, match="is the first line a row") as refused:
        opened(",".join(row).encode(), "csv", **names)
    assert not any(secret in str(refused.value) for secret in (TAIL, P256DH, AUTH))


def test_a_mapped_column_that_is_not_there_is_named() -> None:
    with pytest.raises(RefusedError, match="expected table t to have a column 'who', got endpoint"):
        columns_of(["endpoint"], {"who": "user"}, "table t")


def test_a_column_that_is_there_twice_may_be_either_of_two_people() -> None:
    with pytest.raises(RefusedError, match="one column 'user', got more"):
        opened(b"user,endpoint,user\n")
    with pytest.raises(RefusedError, match="one column 'who', got more"):
        opened(b"who,endpoint,who\n", who="user")
    assert opened(b"note,endpoint,note\n")


def test_a_mapping_says_field_and_column() -> None:
    assert parse_names(["endpoint=push_url", "user=who=x"]) == {"push_url": "endpoint", "who=x": "user"}
    for wrong in ("endpoint", "endpoint=", "endpont=x"):
        with pytest.raises(RefusedError, match="expected FIELD=COLUMN"):
            parse_names([wrong])


@pytest.mark.parametrize("order", [1, -1])
def test_a_member_that_is_mapped_is_meant_whatever_else_is_known_as_that(order: int) -> None:
    members = [*(BROWSER | {"member_no": "m1", "user_id": "7"}).items()][::order]
    (found,) = read(json.dumps(dict(members)).encode(), member_no="user")
    assert isinstance(found, Found)
    assert found.candidate.user_id == "m1"


def test_members_are_mapped_as_columns_are() -> None:
    (found,) = read(b'{"push_url": "x", "keys": {}}', push_url="endpoint")
    assert isinstance(found, Found)
    assert dict(found.candidate.subscription)["endpoint"] == "x"  # type: ignore[call-overload]


def test_what_is_dumped_is_known_by_its_columns() -> None:
    flat = _flat(BROWSER | {"applicationServerKey": None, "created_at": NOW, "last_seen_at": NOW, "tags": ["a"]})
    expected = {
        "endpoint",
        "expiration_time",
        "p256dh",
        "auth",
        "application_server_key",
        "created_at",
        "seen_at",
        "tags",
    }
    assert {field_of(name) for name in flat} == expected


def test_names_that_a_file_makes_up_do_not_fill_the_memory() -> None:
    form = Lines()
    for number in range(1000):
        form.row(b'{"made-up-%d": 1}' % number)
    assert len(form.known) <= 100


# The shorter way


class Bare:
    """A ring that seals nothing, so that two lines of one row can be compared."""

    def seal(self, _purpose: str, bound_to: bytes, plaintext: bytes) -> Sealed:
        return Sealed(1, bound_to[:4] + plaintext)


def make_checker(rules: Rules = RULES) -> Checker:
    chain = replace(keychain(make_settings("postgresql://nowhere/x")), ring=Bare())  # type: ignore[arg-type]
    return checker(chain, Lines(), rules)


def check(data: bytes) -> Any:
    source = opened(data)
    chain = keychain(make_settings("postgresql://nowhere/x"))
    return checker(chain, source.form, RULES).check(list(source.rows))


def changed(member: str, value: object) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def change(row: dict[str, Any]) -> dict[str, Any]:
        if member in ("p256dh", "auth"):
            return row | {"keys": row["keys"] | {member: value}}
        return row | {member: value}

    return change


TEXTS: Final = st.one_of(
    st.text(max_size=20),
    st.text("\\\t\n\r\"{},'<é ", max_size=6),
    st.sampled_from(["", "a", "x" * 128, "x" * 129, "\x00", "\udc80", "N", r"\N"]),
)
ENDPOINTS: Final = st.one_of(
    st.sampled_from([
        ENDPOINT, "https://fcm.googleapis.com", "https://fcm.googleapis.com/", "https://fcm.googleapis.comX",
        "https://fcm.googleapis.com:443/a", "https://fcm.googleapis.com@evil.example/x", "http://fcm.googleapis.com/a",
        "https://fcm.googleapis.com?a/b", "https://FCM.googleapis.com/a", "https://fcm.googleapis.com/a#b", "",
    ]),
    st.text(st.characters(max_codepoint=0x17F), max_size=12).map("https://fcm.googleapis.com/".__add__),
    st.integers(2000, 2080).map(lambda length: ENDPOINT.ljust(length, "x")),
)  # fmt: skip
TIMES: Final = st.one_of(
    st.datetimes(datetime(1980, 1, 1), datetime(2030, 1, 1)).map(lambda when: when.isoformat() + "Z"),  # noqa: DTZ001
    st.sampled_from(
        ["20250102", "2025-01-02", "2025-01-02T03:04:05", "2025-W01-1", "1767323045", 1767323045, None, True]
    ),
)
KEYS: Final = st.one_of(
    st.sampled_from([AUTH, P256DH, AUTH + "==", P256DH[:-1], P256DH[:-1] + "B", AUTH[:-1] + "B", "", None, 5]),
    st.binary(min_size=65, max_size=65).map(lambda raw: base64url.encode(b"\x04" + raw[1:])),
)
CHANGES: Final = st.one_of(
    st.tuples(st.just("endpoint"), ENDPOINTS),
    st.tuples(st.sampled_from(["user", "origin", "user_agent", "locale"]), st.one_of(TEXTS, st.none(), st.integers())),
    st.tuples(st.just("tags"), st.one_of(st.none(), TEXTS, st.lists(st.one_of(TEXTS, st.integers()), max_size=4))),
    st.tuples(st.sampled_from(["created_at", "seen_at"]), TIMES),
    st.tuples(st.sampled_from(["p256dh", "auth"]), KEYS),
    st.tuples(st.sampled_from(["contentEncoding", "expirationTime", "active"]), st.sampled_from([None, 0, "aesgcm"])),
)


@settings(deadline=None, max_examples=100)
@given(st.lists(CHANGES, max_size=3))
def test_the_shorter_way_takes_what_the_careful_way_takes_and_writes_the_same_line(
    changes: list[tuple[str, Any]],
) -> None:
    row = dict(BROWSER)
    for member, value in changes:
        row = changed(member, value)(row)
    raw = json.dumps(row).encode()
    both = make_checker()
    both.quick.learn(ENDPOINT, "fcm")
    under_our_names = both.form.row(raw)
    short = both.quick.line(1, under_our_names)
    try:
        careful = both._line(1, under_our_names)
    except RejectionError:
        careful = None
    assert short is None or short == careful


def test_the_usual_row_takes_the_shorter_way_once_its_host_is_known() -> None:
    row = BROWSER | {
        "user": "u 1",
        "tags": ["b", "a"],
        "origin": "https://acme.io",
        "created_at": "2026-01-01T00:00:00Z",
    }
    both = make_checker()
    under_our_names = both.form.row(json.dumps(row).encode())
    assert both.quick.line(1, under_our_names) is None
    careful = both._line(1, under_our_names)
    assert both.quick.line(1, under_our_names) == careful
    assert careful.count("\t") == len(COLUMNS) - 1


def test_a_key_that_is_said_for_all_rows_is_looked_at_for_each() -> None:
    quick = Quick(
        make_checker().chain, replace(RULES, application_server_key="B"), {"https://fcm.googleapis.com": "fcm"}
    )
    assert quick.line(1, {"endpoint": ENDPOINT, "keys": BROWSER["keys"]}) is None
