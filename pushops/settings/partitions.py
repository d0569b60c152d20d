"""``[partitions.NAME]`` in ``pushops.toml``: a range-partitioned table of yours, made ahead and retired by pushops."""

from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

from pushops.settings.values import Duration, Expected, Identifier, integer

# A partition is called as its table with the day that it begins on: both must fit into 63 characters.
TABLE: Final = r"^[a-z_][a-z0-9_]{0,62}\.[a-z_][a-z0-9_]{0,53}$"


class Interval(StrEnum):
    """How long a partition is; it begins at midnight UTC, a week on Monday, a month on the first."""

    DAY = "day"
    WEEK = "week"
    MONTH = "month"


class PartitionedTable(BaseModel):
    """One such table. ``unfinished`` has no default: somebody must say which rows may still be acted on."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    table: Annotated[str, Field(pattern=TABLE), Expected("a table with its schema, in lower case, as public.clicks")]
    column: Annotated[Identifier, Expected("the column that the table is partitioned by")]
    interval: Annotated[Interval, Expected("day, week or month")]
    retention: Annotated[timedelta, Duration("1d", "3650d")]
    unfinished: Annotated[
        str,
        Field(min_length=1, max_length=2000),
        Expected("a condition on rows that may still be acted on, as status <> 'done', or false where none ever is"),
    ]
    ahead: Annotated[int, integer(1, 100)] = 2
