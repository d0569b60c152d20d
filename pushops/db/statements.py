"""A migration's SQL text as steps: which statements share a transaction and which stand outside any."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Final

_LEXEME: Final = re.compile(
    r"""
    --[^\n]*
  | /\*
  | [eE]'(?:[^'\\]|\\.|'')*'
  | '(?:[^']|'')*'
  | "(?:[^"]|"")*"
  | (?P<tag>\$(?:[^\W\d][\w]*)?\$).*?(?P=tag)
  | BEGIN\s+ATOMIC\b
  | [^\W\d][\w$]*
  | [();]
    """,
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)
_COMMENT_EDGE: Final = re.compile(r"/\*|\*/")

# What PostgreSQL refuses in a transaction, and VALIDATE: sharing one with the ADD CONSTRAINT ... NOT VALID before it,
# its scan of the table would run under that statement's ACCESS EXCLUSIVE lock.
_OUTSIDE: Final = re.compile(
    r"""
    CREATE\ (?:UNIQUE\ )?INDEX\ CONCURRENTLY\b
  | DROP\ INDEX\ CONCURRENTLY\b
  | REINDEX\b.*\bCONCURRENTLY\b
  | ALTER\ TABLE\b.*\bDETACH\ PARTITION\b.*\bCONCURRENTLY\b
  | ALTER\ TABLE\b.*\bVALIDATE\ CONSTRAINT\b
  | VACUUM\b
    """,
    re.VERBOSE | re.IGNORECASE,
)


@dataclass(frozen=True)
class Step:
    """Statements that commit together; an ``outside`` step is one statement that runs in autocommit."""

    statements: tuple[str, ...]
    outside: bool


def steps(text: str) -> list[Step]:
    found: list[Step] = []
    for outside, group in groupby(split(text), key=is_outside):
        statements = tuple(group)
        found += [Step((one,), outside=True) for one in statements] if outside else [Step(statements, outside=False)]
    return found


def split(text: str) -> list[str]:
    """The statements, each with the comments before it and without its semicolon."""
    found, start, depth = [], 0, 0
    for lexeme, end in _lexemes(text):
        depth += _nesting(lexeme, depth)
        if lexeme == ";" and depth == 0:
            found.append(text[start : end - 1])
            start = end
    return [statement.strip() for statement in (*found, text[start:]) if bare(statement)]


def is_outside(statement: str) -> bool:
    return _OUTSIDE.match(bare(statement)) is not None


def bare(statement: str) -> str:
    """The statement on one line, without comments."""
    kept, start = [], 0
    for lexeme, end in _lexemes(statement):
        if lexeme.startswith(("--", "/*")):
            kept.append(statement[start : end - len(lexeme)])
            start = end
    return " ".join(" ".join((*kept, statement[start:])).split())


def _lexemes(text: str) -> Iterator[tuple[str, int]]:
    position = 0
    while match := _LEXEME.search(text, position):
        position = _comment_end(text, match.end()) if match[0] == "/*" else match.end()
        yield text[match.start() : position], position


def _comment_end(text: str, position: int) -> int:
    """The end of a block comment whose opening ends at ``position``; PostgreSQL nests them."""
    depth = 1
    for edge in _COMMENT_EDGE.finditer(text, position):
        depth += 1 if edge[0] == "/*" else -1
        if depth == 0:
            return edge.end()
    return len(text)


def _nesting(lexeme: str, depth: int) -> int:
    """How much deeper the lexeme leads: parentheses, and bodies in BEGIN ATOMIC with the CASE ... END inside them."""
    word = lexeme.upper()
    if lexeme == "(" or (word.startswith("BEGIN") and word.endswith("ATOMIC")):
        return 1
    if depth and (lexeme == ")" or word == "END"):
        return -1
    return 1 if depth and word == "CASE" else 0
