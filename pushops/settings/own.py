"""``[sweeps.NAME]`` in ``pushops.toml``: a table of yours whose rows are deleted by the engine when they are over."""

from datetime import timedelta
from typing import Annotated, Final, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from pushops.settings.values import Duration, Expected, Identifier, integer, share

TABLE: Final = r"^[a-z_][a-z0-9_]{0,62}\.[a-z_][a-z0-9_]{0,62}$"
# A folder that looks like a year would be taken for one of the payloads'.
_PREFIX: Final = r"^[a-z][a-z0-9_-]{0,39}(?:/[a-z0-9][a-z0-9_-]{0,39}){0,3}$"
_CLOCK: Final = r"^(?:[01][0-9]|2[0-3]):[0-5][0-9]$"

# Of what pushops brings along; a test holds these together with the sweeps that there are.
TAKEN: Final = frozenset(
    {
        "age-expired",
        "age-stale",
        "apply-erasures",
        "close-dead-letters",
        "drain-dead-letters",
        "fan-out",
        "purge-answers",
        "purge-audit",
        "purge-dead-letters",
        "purge-evidence",
        "purge-ledger",
        "purge-messages",
        "purge-payloads",
        "purge-periods",
        "purge-receipts",
        "purge-runs",
        "purge-tombstones",
        "reseal-auth",
        "retire-partitions",
        "scrub-tombstones",
        "send-due",
    }
)


def own_name(name: str) -> str:
    """A name that no sweep of pushops has."""
    if name in TAKEN:
        raise ValueError("taken")
    return name


class OwnTable(BaseModel):
    """One such table. A row goes where its time is past, ``predicate`` holds and ``hold`` does not.

    The predicate may be left out only with ``expires``: by age alone, what still waits for something would go too.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    table: Annotated[str, Field(pattern=TABLE), Expected("a table with its schema, in lower case, as public.links")]
    key: Annotated[
        tuple[Identifier, ...], Field(max_length=8), Expected('the columns of a unique index, as ["tenant_id", "id"]')
    ] = ()
    predicate: Annotated[
        str | None, Field(min_length=1, max_length=2000), Expected("a condition on the row's own columns")
    ] = None
    expires: Annotated[Identifier | None, Expected("the column that says when a row is over")] = None
    age: Annotated[Identifier | None, Expected("the column that says how old a row is")] = None
    retention: Annotated[timedelta, Duration("0s", "36500d")] = timedelta()
    zone: Annotated[
        str | None, Field(pattern=r"^[A-Za-z][A-Za-z0-9_+/-]{0,63}$"), Expected("a time zone, as UTC or Europe/Berlin")
    ] = None
    page_rows: Annotated[Annotated[int, integer(1, 20_000)] | None, Expected("an integer between 1 and 20000")] = None
    max_share: Annotated[Annotated[float, share(0.0001, 1)] | None, Expected("a share between 0.0001 and 1")] = None
    hold: Annotated[Identifier | None, Expected("a boolean column; where it is true the row is kept")] = None
    archive: Annotated[str | None, Field(pattern=_PREFIX), Expected("a folder of the payload store, as links/old")] = (
        None
    )
    schedule: Annotated[str | None, Field(pattern=_CLOCK), Expected('a time of the day in UTC, as "03:30"')] = None

    @model_validator(mode="after")
    def _check_time(self) -> Self:
        if (self.expires is None) == (self.age is None):
            raise ValueError('expected either expires = "COLUMN" or age = "COLUMN" with a retention')
        if self.age is not None and not self.retention:
            raise ValueError("expected a retention with age: how old a row may become")
        if self.age is not None and self.predicate is None:
            raise ValueError(
                "expected a predicate with age: which rows are done with, since old ones may still wait for something"
            )
        return self

    @property
    def column(self) -> str:
        """The column whose time decides."""
        return self.expires or self.age or ""
