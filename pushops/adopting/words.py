"""What is adopted: a table, its columns, how its hash is made, and which of two rows of one endpoint stays."""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from psycopg.sql import Identifier, Literal

from pushops.errors import RefusedError

# Names are put into statements with parameters; and what we call after them must fit into 63 characters.
_NAME: Final = re.compile(r"[^%{}\x00\"]{1,63}")
_LONGEST: Final = 48


class Hash(StrEnum):
    """Functions of PostgreSQL; pushops' own ``endpoint_hash`` is sha256."""

    SHA256 = "sha256"
    SHA384 = "sha384"
    SHA512 = "sha512"

    @property
    def length(self) -> int:
        return int(self.value[3:]) // 8


class Losers(StrEnum):
    """What becomes of the other rows of an endpoint."""

    MARK = "mark"  # they stay, without a hash, and say who superseded them
    REMOVE = "remove"


@dataclass(frozen=True)
class Adoption:
    """``latest`` is the column by which the latest of an endpoint's rows wins; then the highest key does."""

    schema: str
    table: str
    key: str
    key_type: str
    endpoint: str = "endpoint"
    column: str = "endpoint_hash"
    hash: Hash = Hash.SHA256
    latest: str | None = None
    losers: Losers = Losers.MARK

    def __post_init__(self) -> None:
        names = (self.schema, self.table, self.key, self.endpoint, self.column, self.latest or "x")
        if not all(_NAME.fullmatch(name) for name in names):
            raise RefusedError("expected names of at most 63 characters without quotes, percent signs and braces")
        if len(self.table.encode()) + len(self.column.encode()) > _LONGEST:
            raise RefusedError(f"expected the names of table and column to have at most {_LONGEST} bytes together")

    @property
    def relation(self) -> str:
        return Identifier(self.schema, self.table).as_string()

    @property
    def plain(self) -> str:
        return f"{self.schema}.{self.table}"

    @property
    def stem(self) -> str:
        return f"{self.table}_{self.column}"

    @property
    def unique(self) -> str:
        return f"{self.stem}_unique"

    @property
    def helper(self) -> str:
        return f"{self.stem}_all"

    @property
    def check(self) -> str:
        return f"{self.stem}_present"

    @property
    def trigger(self) -> str:
        return f"pushops_{self.stem}"

    def hashed(self, row: str) -> str:
        """The hash of a row's endpoint, byte for byte."""
        return f"{self.hash}(convert_to({row}{quoted(self.endpoint)}::text, 'UTF8'))"


SUPERSEDED: Final = "superseded_by"


def quoted(name: str) -> str:
    return Identifier(name).as_string()


def text_of(value: str) -> str:
    """As a literal."""
    return Literal(value).as_string()
