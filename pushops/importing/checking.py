"""Rows checked and sealed, as the bytes that COPY takes: all that needs no database, and so may run in any process."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from pushops.importing.shapes import Found, read_row
from pushops.importing.sources import Form, Numbered
from pushops.importing.words import Refusal, Rules
from pushops.subscriptions.attributes import Attributes, read_attributes
from pushops.subscriptions.intake import parse_application_server_key
from pushops.subscriptions.keychain import Keychain
from pushops.subscriptions.registering import prepare
from pushops.subscriptions.rejection import Reason, Rejected, RejectionError
from pushops.subscriptions.store.registration import Registration

_NULL: Final = r"\N"
_FINGERPRINT: Final = 16  # hex digits


@dataclass
class Checked:
    """A chunk's outcome. ``rows`` is how many stand in ``copy``; every other line is in ``refusals``."""

    lines: int
    rows: int = 0
    copy: bytes = field(default=b"", repr=False)
    refusals: list[Refusal] = field(default_factory=list)
    foreign_keys: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Checker:
    chain: Keychain
    form: Form
    rules: Rules

    def check(self, chunk: Sequence[Numbered]) -> Checked:
        """Nothing is raised for content."""
        done = Checked(len(chunk))
        rows = []
        for number, raw in chunk:
            row: Any = None
            try:
                row = self.form.row(raw)
                rows.append(self._staged(number, read_row(row, self.rules)))
            except RejectionError as error:
                done.refusals.append(Refusal(number, error.rejected, self._tag(row)))
                if error.rejected.reason == Reason.UNKNOWN_VAPID_KEY:
                    done.foreign_keys[self._fingerprint(row)] += 1
        done.rows, done.copy = len(rows), "".join(rows).encode()
        return done

    def _staged(self, number: int, found: Found) -> str:
        given = found.candidate
        attributes = read_attributes(given.user_id, given.origin, given.tags, given.user_agent, given.locale)
        prepared = prepare(self.chain, given.subscription, given.application_server_key, attributes)
        return _line(number, prepared.row, attributes, given.created_at, found.recency)

    def _tag(self, row: Any) -> str | None:  # noqa: ANN401  (whatever the file had)
        """The log's name of a refused row's endpoint, by which its owner may be asked for it."""
        inside = row.get("subscription") if row else None
        endpoint = (inside if isinstance(inside, dict) else row or {}).get("endpoint")
        return self.chain.tag(endpoint) if isinstance(endpoint, str) else None

    def _fingerprint(self, row: Any) -> str:  # noqa: ANN401  (the same)
        public = parse_application_server_key(row.get("application_server_key") or self.rules.application_server_key)
        return "unreadable" if isinstance(public, Rejected) else hashlib.sha256(public).hexdigest()[:_FINGERPRINT]


def _line(
    number: int, row: Registration, attributes: Attributes, created_at: datetime | None, recency: datetime | None
) -> str:
    """A line of COPY's text format, in the order of ``store.staging.COLUMNS``."""
    tags = attributes.tags
    return (
        "\t".join(
            (
                str(number),
                rf"\\x{row.endpoint_hash.hex()}",
                row.endpoint,  # visible ASCII without a backslash
                row.push_service,
                row.p256dh,
                rf"\\x{row.auth_sealed.hex()}",
                str(row.auth_key_version),
                row.content_encoding,
                _text(row.vapid_key_id),
                _time(row.expiration_time),
                _text(attributes.user_id),
                _NULL if tags is None else _text("{" + ",".join(map(_element, tags)) + "}"),
                _text(attributes.user_agent),
                _text(attributes.locale),
                _text(attributes.origin),
                _time(created_at),
                _time(recency),
            )
        )
        + "\n"
    )


def _text(value: str | None) -> str:
    if value is None:
        return _NULL
    if value.isalnum():
        return value
    return value.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")


def _time(value: datetime | None) -> str:
    return _NULL if value is None else value.isoformat()


def _element(tag: str) -> str:
    escaped = tag.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
