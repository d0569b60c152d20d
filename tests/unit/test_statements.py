import pytest

from pushops.db.statements import Step, bare, is_outside, split, steps


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("  ;; -- nothing\n; /* nor here; */", []),
        ("SELECT 1; SELECT 2", ["SELECT 1", "SELECT 2"]),
        ("SELECT ';' ; SELECT 'it''s;'", ["SELECT ';'", "SELECT 'it''s;'"]),
        (r"SELECT E'\';'; SELECT 2", [r"SELECT E'\';'", "SELECT 2"]),
        (r"SELECT '\'; SELECT 2", [r"SELECT '\'", "SELECT 2"]),
        ('SELECT 1 AS "a;""b"; SELECT 2', ['SELECT 1 AS "a;""b"', "SELECT 2"]),
        ("DO $$ BEGIN; END; $$; SELECT 2", ["DO $$ BEGIN; END; $$", "SELECT 2"]),
        ("DO $a$ x; $b$ ; $b$ $$;$$ $a$; SELECT 2", ["DO $a$ x; $b$ ; $b$ $$;$$ $a$", "SELECT 2"]),
        ("SELECT a$1, $2; SELECT b$1", ["SELECT a$1, $2", "SELECT b$1"]),
        ("SELECT 1 -- one; two $$\n; SELECT 2", ["SELECT 1 -- one; two $$", "SELECT 2"]),
        ("SELECT /* a /* b; */ c; ' */ 1; SELECT 2", ["SELECT /* a /* b; */ c; ' */ 1", "SELECT 2"]),
        ("-- why\nSELECT 1;", ["-- why\nSELECT 1"]),
        ("CREATE RULE r AS ON INSERT TO t DO (SELECT 1; SELECT 2); SELECT 3",
         ["CREATE RULE r AS ON INSERT TO t DO (SELECT 1; SELECT 2)", "SELECT 3"]),
        ("CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT CASE WHEN true THEN 1 END; SELECT 2; END; SELECT 3",
         ["CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT CASE WHEN true THEN 1 END; SELECT 2; END", "SELECT 3"]),
        ("SELECT CASE WHEN true THEN 1 END; SELECT 2", ["SELECT CASE WHEN true THEN 1 END", "SELECT 2"]),
    ],
)  # fmt: skip
def test_statements_end_at_semicolons_that_are_not_inside_something(text: str, expected: list[str]) -> None:
    assert split(text) == expected


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE INDEX CONCURRENTLY IF NOT EXISTS i ON s.t (a)",
        "-- why\ncreate unique\n  index concurrently i ON s.t (a)",
        "/* why */ DROP INDEX CONCURRENTLY IF EXISTS s.i",
        "REINDEX (VERBOSE) INDEX CONCURRENTLY s.i",
        "ALTER TABLE s.t DETACH PARTITION s.p CONCURRENTLY",
        "ALTER TABLE s.t VALIDATE CONSTRAINT c",
        "VACUUM s.t",
    ],
)
def test_what_cannot_share_a_transaction_stands_outside(statement: str) -> None:
    assert is_outside(statement)


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE INDEX i ON s.t (a)",
        "ALTER TABLE s.t DETACH PARTITION s.p",
        "ALTER TABLE s.t ADD CONSTRAINT c CHECK (a > 0) NOT VALID",
        "COMMENT ON TABLE s.t IS 'CREATE INDEX CONCURRENTLY'",
        "-- CREATE INDEX CONCURRENTLY\nSELECT 1",
        "CREATE TABLE vacuum_log (a int)",
    ],
)
def test_everything_else_runs_in_a_transaction(statement: str) -> None:
    assert not is_outside(statement)


def test_neighbours_share_a_transaction_and_outside_statements_stand_alone() -> None:
    text = "SELECT 1; SELECT 2; VACUUM a; VACUUM b; SELECT 3;"
    assert steps(text) == [
        Step(("SELECT 1", "SELECT 2"), outside=False),
        Step(("VACUUM a",), outside=True),
        Step(("VACUUM b",), outside=True),
        Step(("SELECT 3",), outside=False),
    ]


def test_a_bare_statement_keeps_strings_that_look_like_comments() -> None:
    assert bare("SELECT '--x' /* gone */,\n  '/*y*/' -- gone") == "SELECT '--x' , '/*y*/'"
