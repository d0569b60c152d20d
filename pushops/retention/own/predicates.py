"""Pure decisions about a condition that somebody wrote: from its text, and from how PostgreSQL understood it."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pushops.errors import RefusedError
from pushops.retention.own.words import Compared, Function

_LEXEME: Final = re.compile(
    r"""(?P<string>[eEbBxXnN]?'(?:[^']|'')*'|[uU]&'(?:[^']|'')*')|(?P<quoted>"(?:[^"]|"")*")
      |(?P<comment>--|/\*)|(?P<dollar>\$[A-Za-z_]*\$)|(?P<word>[^\W\d][\w$]*)|(?P<sign>[()\[\],;'"])""",
    re.VERBOSE,
)
_DATE: Final = re.compile(r"^\s*\d{4}-\d{1,2}-\d{1,2}")
_ZONE: Final = re.compile(r"(?:Z|UTC|[+-]\d{1,2}(?::?\d{2})?|[A-Z][a-z]+/\w+)\s*$")
_MOVING: Final = frozenset({"now", "today", "tomorrow", "yesterday"})

# Of pg_type.oid, which no release changes.
AWARE: Final = 1184
NAIVE: Final = frozenset({1082, 1083, 1114})
TIMES: Final = NAIVE | {AWARE}
_FUNCTION: Final = re.compile(r":(?:opfuncid|funcid)\s+(\d+)")
_CONSTANT: Final = re.compile(r"\{CONST\s+:consttype\s+(\d+)")
_COLUMN: Final = re.compile(r"\{VAR\s+:varno\s+\d+\s+:varattno\s+(-?\d+)")
_AS_TEXT: Final = re.compile(r"\{COERCEVIAIO\b.*?:resulttype\s+(\d+)", re.DOTALL)

# As PostgreSQL writes a condition: (status)::text = 'done'::text, status <> ALL ('{a,b}'::text[]).
_NAME: Final = r'(?:"(?:[^"]|"")+"|[a-z_][\w$]*)'
_COMPARED: Final = re.compile(
    rf"""(?<![\w"])(?:\((?P<cast>{_NAME})\)::[a-z][a-z ]*(?:\(\d+\))?|(?P<column>{_NAME}))[ ](?P<sign>=|<>)[ ]
        (?:(?:ANY|ALL)[ ]\()?'(?P<value>(?:[^']|'')*)'::"?[\w. ]+"?(?P<many>\[\])?""",
    re.VERBOSE,
)


@dataclass(frozen=True)
class Tree:
    """What PostgreSQL's parse tree of a condition names: functions of calls, operators and casts, columns, types."""

    functions: frozenset[int]
    columns: frozenset[int]
    constants: frozenset[int]
    from_text: frozenset[int]
    subquery: bool
    clock: bool


@dataclass
class _Level:
    """What was seen between two parentheses."""

    words: set[str] = field(default_factory=set)
    between: int = 0

    def take(self, word: str) -> None:
        if word == "BETWEEN":
            self.between += 1
        elif word == "AND" and self.between:
            self.between -= 1
        elif word in ("AND", "OR"):
            self.words.add(word)


def check_text(text: str, place: str) -> None:
    """Whether it is one condition, and cannot be read in two ways. Raises RefusedError."""
    got = f"got {text!r}"
    levels = [_Level()]
    for kind, lexeme in lexemes(text):
        if kind in ("comment", "dollar") or lexeme in (";", "'", '"'):
            raise RefusedError(f"expected {place} to be one condition without comments, semicolons and $$, {got}")
        if lexeme in ("(", "[", "CASE"):
            levels.append(_Level())
        elif lexeme in (")", "]", "END"):
            levels.pop()
            if not levels:
                raise RefusedError(f"expected {place} to close only parentheses that it opened, {got}")
        elif lexeme in (",", "WHEN", "THEN", "ELSE"):
            levels[-1] = _Level()
        else:
            levels[-1].take(lexeme)
        if levels[-1].words == {"AND", "OR"}:
            raise RefusedError(
                f"expected {place} to say with parentheses what its OR belongs to, {got}: AND binds first, so that"
                " a OR b AND c is a OR (b AND c)"
            )
    if len(levels) > 1:
        raise RefusedError(f"expected {place} to close every parenthesis, {got}")
    if "{schema}" in text or "{batch}" in text:
        raise RefusedError(f"expected {place} not to hold {{schema}} or {{batch}}, {got}")


def lexemes(text: str) -> Iterator[tuple[str, str]]:
    """Words in upper case, everything else as it stands."""
    for match in _LEXEME.finditer(text):
        kind = str(match.lastgroup)
        yield kind, match[0].upper() if kind == "word" else match[0]


def tree_of(text: str) -> Tree:
    """The quals of a parse tree as PostgreSQL prints it."""
    quals = text[text.find(":quals") :]
    return Tree(
        functions=_numbers(_FUNCTION, quals),
        columns=_numbers(_COLUMN, quals),
        constants=_numbers(_CONSTANT, quals),
        from_text=_numbers(_AS_TEXT, quals),
        subquery="{SUBLINK" in quals,
        clock="{SQLVALUEFUNCTION" in quals,
    )


def _numbers(pattern: re.Pattern[str], text: str) -> frozenset[int]:
    return frozenset(int(found) for found in pattern.findall(text))


def check_tree(text: str, tree: Tree, functions: Sequence[Function], place: str) -> None:
    """Whether it asks only the row's own columns, and gives the same answer whenever. Raises RefusedError."""
    got = f"got {text!r}"
    if tree.subquery:
        raise RefusedError(
            f"expected {place} to ask the row's own columns, {got}: a sub-query is looked at for each row"
        )
    if not tree.columns:
        raise RefusedError(f"expected {place} to name a column, {got}: it is the same for every row")
    if any(number < 0 for number in tree.columns):
        raise RefusedError(f"expected {place} to name columns of the table, {got}: a system column is none")
    moving = sorted({each.name for each in functions if each.name in _CLOCKS}) or (["the clock"] if tree.clock else [])
    if moving or (tree.constants & TIMES and _literals(text) & _MOVING):
        what = ", ".join(moving) or "a moving time"
        raise RefusedError(
            f"expected {place} not to ask for the time, got {what}: a run keeps the time of its opening, say the column"
            " with expires, or with age and retention"
        )
    volatile = sorted(each.name for each in functions if each.volatility == "v")
    if volatile:
        raise RefusedError(
            f"expected {place} to give the same answer twice, got {', '.join(volatile)}, which is volatile"
        )
    _check_zones(text, tree, functions, place)


def _check_zones(text: str, tree: Tree, functions: Sequence[Function], place: str) -> None:
    naive = [each for each in _texts(text) if _DATE.match(each) and not _ZONE.search(_DATE.sub("", each))]
    if AWARE in tree.constants and naive:
        raise RefusedError(
            f"expected {place} to say a time with its zone, got {naive[0]!r}: write '{naive[0]}+00' where UTC is meant"
        )
    mixed = [each for each in functions if each.volatility != "i" and AWARE in each.types and NAIVE & each.types]
    if mixed or AWARE in tree.from_text:
        raise RefusedError(
            f"expected {place} to compare times with a zone or times without, got both in {text!r}: say the zone, as"
            " started AT TIME ZONE 'UTC'"
        )


_CLOCKS: Final = frozenset(
    {"now", "transaction_timestamp", "statement_timestamp", "clock_timestamp", "timeofday", "age"}
)


def _literals(text: str) -> set[str]:
    return {each.strip().lower() for each in _texts(text)}


def _texts(text: str) -> list[str]:
    return [lexeme[lexeme.index("'") + 1 : -1] for kind, lexeme in lexemes(text) if kind == "string"]


def compared(condition: str, columns: Iterable[str]) -> list[Compared]:
    """Which columns are compared with which constants, by PostgreSQL's own words for the condition."""
    known = set(columns)
    found = []
    for match in _COMPARED.finditer(condition):
        name = (match["cast"] or match["column"]).strip('"')
        if name in known:
            value = match["value"].replace("''", "'")
            found.append(Compared(name, value, many=bool(match["many"]), negative=match["sign"] == "<>"))
    return found


def unknown_values(seen: Mapping[str, Sequence[str]], named: Sequence[tuple[str, str]]) -> list[str]:
    """Of columns whose values are all known from the last analyze: what is named and was not there."""
    return [
        f"no row had {name} = '{value}' when the table was analyzed last: it had {', '.join(sorted(seen[name]))}"
        for name, value in named
        if name in seen and value not in seen[name]
    ]
