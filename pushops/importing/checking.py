"""Rows checked and sealed, as the bytes that COPY takes: all that needs no database, and so may run in any process."""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pushops.importing import lines
from pushops.importing.quick import Quick
from pushops.importing.shapes import read_row
from pushops.importing.sources import Form, Numbered
from pushops.importing.words import Refusal, Rules
from pushops.subscriptions.attributes import read_attributes
from pushops.subscriptions.intake import parse_application_server_key
from pushops.subscriptions.keychain import Keychain
from pushops.subscriptions.registering import prepare
from pushops.subscriptions.rejection import Reason, Rejected, RejectionError

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
    """Checks and seals rows of one form."""

    chain: Keychain
    form: Form
    rules: Rules
    quick: Quick

    def check(self, chunk: Sequence[Numbered]) -> Checked:
        """Nothing is raised for content."""
        done = Checked(len(chunk))
        rows = []
        for number, raw in chunk:
            row: Any = None
            try:
                row = self.form.row(raw)
                rows.append(self.quick.line(number, row) or self._line(number, row))
            except RejectionError as error:
                done.refusals.append(Refusal(number, error.rejected, self._tag(row)))
                if error.rejected.reason == Reason.UNKNOWN_VAPID_KEY:
                    done.foreign_keys[self._fingerprint(row)] += 1
        done.rows, done.copy = len(rows), "".join(rows).encode()
        return done

    def _line(self, number: int, row: Mapping[str, Any]) -> str:
        """The careful way; raises RejectionError."""
        found = read_row(row, self.rules)
        given = found.candidate
        attributes = read_attributes(given.user_id, given.origin, given.tags, given.user_agent, given.locale)
        prepared = prepare(self.chain, given.subscription, given.application_server_key, attributes)
        self.quick.learn(prepared.row.endpoint, prepared.row.push_service)
        return lines.careful(number, prepared.row, attributes, found)

    def _tag(self, row: Any) -> str | None:  # noqa: ANN401  (whatever the file had)
        """The log's name of a refused row's endpoint, by which its owner may be asked for it."""
        inside = row.get("subscription") if row else None
        endpoint = (inside if isinstance(inside, dict) else row or {}).get("endpoint")
        return self.chain.tag(endpoint) if isinstance(endpoint, str) else None

    def _fingerprint(self, row: Any) -> str:  # noqa: ANN401  (the same)
        public = parse_application_server_key(row.get("application_server_key") or self.rules.application_server_key)
        return "unreadable" if isinstance(public, Rejected) else hashlib.sha256(public).hexdigest()[:_FINGERPRINT]


def checker(chain: Keychain, form: Form, rules: Rules) -> Checker:
    return Checker(chain, form, rules, Quick(chain, rules))
