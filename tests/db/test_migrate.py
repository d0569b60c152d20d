"""Migrations run online, once, and to their end, whoever else migrates, locks or dies meanwhile."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pushops.db.lease import LeaseLostError
from pushops.db.migrate import VERSIONS, current, migrate, pending, render_sql
from pushops.errors import DatabaseError, StatementTimeoutError
from pushops.sandbox import PostgresServer
from pushops.sandbox.binaries import postgres_programs
from pushops.sandbox.processes import wait_until
from pushops.settings import Settings
from tests.made import make_settings
from tests.migrating import migration, write_revisions

TABLES = "CREATE TABLE {schema}.t (a int); CREATE TABLE {schema}.ran (step text);"
INDEX = """
INSERT INTO {schema}.ran VALUES ('before');
CREATE INDEX CONCURRENTLY IF NOT EXISTS t_a ON {schema}.t (a);
INSERT INTO {schema}.ran VALUES ('after');
"""
COLUMN = "INSERT INTO {schema}.ran VALUES ('column'); ALTER TABLE {schema}.t ADD COLUMN b int;"

OBJECTS = """
SELECT n.nspname, c.relname FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
 WHERE n.nspname NOT LIKE 'pg\\_%' AND n.nspname <> 'information_schema'"""
VALID = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('pushops.t_a')"
BUILDING = "SELECT count(*) FROM pg_stat_progress_create_index WHERE datname = current_database()"
EXPIRES = "SELECT expires_at FROM pushops.migration_lease"
AGE_LEASE = "UPDATE pushops.migration_lease SET expires_at = clock_timestamp() WHERE token IS NOT NULL"

Conn = psycopg.Connection[Any]


@pytest.fixture
def empty(empty_database_url: str) -> Settings:
    return make_settings(empty_database_url, lock_timeout="100ms")


@pytest.fixture
def look(empty_database_url: str) -> Iterator[Conn]:
    with psycopg.connect(empty_database_url, autocommit=True) as conn:
        yield conn


@pytest.fixture
def holder(empty_database_url: str) -> Iterator[Conn]:
    """A connection that holds locks in a transaction until it commits."""
    with psycopg.connect(empty_database_url) as conn:
        yield conn


def value(conn: Conn, query: str) -> Any:
    row = conn.execute(query.encode()).fetchone()
    return row[0] if row else None


def ran(conn: Conn) -> list[str]:
    return [step for (step,) in conn.execute("SELECT step FROM pushops.ran ORDER BY ctid")]


def test_everything_lands_in_the_schema_of_the_settings(empty: Settings, look: Conn) -> None:
    settings = empty.model_copy(update={"db_schema": "own_name"})
    assert current(settings) is None
    applied = migrate(settings)
    assert applied == [path.stem[:4] for path in sorted(VERSIONS.glob("*.sql"))]
    assert current(settings) == applied[-1]
    found = look.execute(OBJECTS).fetchall()
    assert {schema for schema, _ in found} == {"own_name"}
    assert {"alembic_version", "migration_lease", "push_subscription"} <= {name for _, name in found}


def test_a_second_run_has_nothing_to_do(empty: Settings) -> None:
    assert migrate(empty) == pending(empty.model_copy(update={"db_schema": "not_there"}))
    assert pending(empty) == []
    assert migrate(empty) == []


def test_an_older_release_leaves_a_newer_schema_alone(empty: Settings, tmp_path: Path) -> None:
    migrate(empty, versions=write_revisions(tmp_path / "new", TABLES, COLUMN))
    older = write_revisions(tmp_path / "old", TABLES)
    assert pending(empty, versions=older) == []
    assert migrate(empty, versions=older) == []
    assert current(empty) == "0002"


@pytest.mark.long
def test_the_poller_of_two_processes_does_not_stop_a_concurrent_index(
    empty: Settings, look: Conn, holder: Conn, tmp_path: Path, empty_database_url: str
) -> None:
    versions = write_revisions(tmp_path / "v", TABLES)
    migrate(empty, versions=versions)
    write_revisions(versions, TABLES, INDEX)
    holder.execute("INSERT INTO pushops.t VALUES (1)")  # the index waits for this transaction
    with migration(empty_database_url, versions) as first:
        wait_until(lambda: value(look, BUILDING) == 1, 30, "an index that is being built")
        with migration(empty_database_url, versions) as second:
            second.says("waiting for")
            holder.commit()
            assert first.ends() == ["0002"]
            assert second.ends() == []
    assert ran(look) == ["before", "after"]
    assert value(look, VALID) is True


def test_processes_that_start_together_on_an_empty_database_migrate_once(
    look: Conn, tmp_path: Path, empty_database_url: str
) -> None:
    versions = write_revisions(tmp_path / "v", TABLES, INDEX, COLUMN)
    with migration(empty_database_url, versions) as one, migration(empty_database_url, versions) as two:
        assert sorted((one.ends(), two.ends())) == [[], ["0001", "0002", "0003"]]
    assert ran(look) == ["before", "after", "column"]


def test_a_schema_that_somebody_else_makes_in_this_moment_is_no_error(
    look: Conn, holder: Conn, tmp_path: Path, empty_database_url: str
) -> None:
    holder.execute("CREATE SCHEMA pushops")
    with migration(empty_database_url, write_revisions(tmp_path / "v", TABLES)) as running:
        waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        wait_until(lambda: value(look, waits) == 1, 30, "a process that waits for the schema")
        holder.commit()
        assert running.ends() == ["0001"]


def test_a_killed_holder_is_followed_when_its_lease_expires(
    empty: Settings, look: Conn, holder: Conn, tmp_path: Path, empty_database_url: str
) -> None:
    versions = write_revisions(tmp_path / "v", TABLES)
    migrate(empty, versions=versions)
    write_revisions(versions, TABLES, COLUMN)
    holder.execute("SELECT * FROM pushops.t")
    with migration(empty_database_url, versions, lock_timeout="50ms") as killed:
        killed.says("trying again")
        with migration(empty_database_url, versions) as heir:
            heir.says("waiting for")
            killed.kill()
            holder.commit()
            look.execute(AGE_LEASE)
            assert heir.ends() == ["0002"]
    assert ran(look) == ["column"]


def test_an_index_that_a_killed_holder_left_invalid_is_rebuilt_and_its_steps_are_not_repeated(
    empty: Settings, look: Conn, holder: Conn, tmp_path: Path, empty_database_url: str
) -> None:
    versions = write_revisions(tmp_path / "v", TABLES)
    migrate(empty, versions=versions)
    write_revisions(versions, TABLES, INDEX)
    holder.execute("INSERT INTO pushops.t VALUES (1)")
    with migration(empty_database_url, versions) as killed:
        wait_until(lambda: value(look, BUILDING) == 1, 30, "an index that is being built")
        killed.kill()
    wait_until(lambda: value(look, BUILDING) == 0, 30, "the server to notice that its client is gone")
    assert value(look, VALID) is False
    look.execute(AGE_LEASE)
    holder.commit()
    lines: list[str] = []
    assert migrate(empty, lines.append, versions=versions) == ["0002"]
    assert [line for line in lines if "invalid" in line] == [
        "dropping the invalid index pushops.t_a, which an interrupted migration left"
    ]
    assert value(look, VALID) is True
    assert ran(look) == ["before", "after"]


def test_a_holder_that_lost_its_lease_rolls_its_step_back(empty: Settings, look: Conn, tmp_path: Path) -> None:
    stolen = "UPDATE {schema}.migration_lease SET token = gen_random_uuid(), holder = 'other:1';"
    with pytest.raises(LeaseLostError, match="held by other:1"):
        migrate(empty, versions=write_revisions(tmp_path / "v", TABLES + stolen))
    assert current(empty) is None
    assert value(look, "SELECT to_regclass('pushops.t') IS NULL") is True


def test_a_migration_never_queues_in_front_of_traffic(
    empty: Settings, look: Conn, holder: Conn, tmp_path: Path, empty_database_url: str
) -> None:
    versions = write_revisions(tmp_path / "v", TABLES)
    migrate(empty, versions=versions)
    write_revisions(versions, TABLES, COLUMN)
    holder.execute("SELECT * FROM pushops.t")  # a long report
    look.execute("SET lock_timeout = '2s'")
    with migration(empty_database_url, versions, lock_timeout="100ms") as running:
        running.says("trying again")
        for _ in range(500):
            look.execute("INSERT INTO pushops.t VALUES (1)")
        holder.commit()
        assert running.ends() == ["0002"]
    assert value(look, "SELECT count(*) FROM pushops.t") == 500
    assert ran(look) == ["column"]


def test_a_statement_timeout_of_the_database_does_not_cut_an_index_in_half(
    empty: Settings, look: Conn, holder: Conn, tmp_path: Path, empty_database_url: str
) -> None:
    versions = write_revisions(tmp_path / "v", TABLES)
    migrate(empty, versions=versions)
    write_revisions(versions, TABLES, INDEX)
    holder.execute("INSERT INTO pushops.t VALUES (1)")
    look.execute(f"ALTER DATABASE {look.info.dbname} SET statement_timeout = '200ms'".encode())
    waits = f"""SELECT count(*) FROM pg_stat_activity
                 WHERE datname = '{look.info.dbname}' AND query LIKE 'CREATE INDEX CONC%' AND state = 'active'
                   AND clock_timestamp() - query_start > interval '500 ms'"""
    with migration(empty_database_url, versions) as running:
        wait_until(lambda: value(look, waits) == 1, 30, "an index that outlives the timeout")
        holder.commit()
        assert running.ends() == ["0002"]
    assert not any("trying again" in line or "invalid" in line for line in running.lines)


def test_a_statement_that_holds_its_locks_too_long_is_cancelled_and_leaves_nothing(
    empty: Settings, look: Conn, tmp_path: Path
) -> None:
    settings = empty.model_copy(update={"statement_timeout": empty.lock_timeout})
    with pytest.raises(StatementTimeoutError, match="pg_sleep"):
        migrate(settings, versions=write_revisions(tmp_path / "v", TABLES + "SELECT pg_sleep(20);"))
    assert current(settings) is None
    assert value(look, "SELECT to_regclass('pushops.t') IS NULL") is True


def test_a_failing_statement_is_named_and_the_mended_revision_goes_on(
    empty: Settings, look: Conn, tmp_path: Path
) -> None:
    versions = write_revisions(tmp_path / "v", TABLES, INDEX + "ALTER TABLE {schema}.nowhere ADD COLUMN c int;")
    with pytest.raises(DatabaseError, match=r'"pushops.nowhere" does not exist: ALTER TABLE "pushops".nowhere'):
        migrate(empty, versions=versions)
    assert current(empty) == "0001"
    assert ran(look) == ["before"]
    write_revisions(versions, TABLES, INDEX)
    assert migrate(empty, versions=versions) == ["0002"]
    assert ran(look) == ["before", "after"]


def test_errors_do_not_repeat_values_of_rows(empty: Settings, tmp_path: Path) -> None:
    text = "INSERT INTO {schema}.t VALUES (4711), (4711);"
    versions = write_revisions(tmp_path / "v", TABLES, text, "CREATE UNIQUE INDEX t_a ON {schema}.t (a);")
    with pytest.raises(DatabaseError, match="23505 UniqueViolation") as caught:
        migrate(empty, versions=versions)
    assert "4711" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_new_constraint_is_validated_outside_the_transaction_that_added_it(
    empty: Settings, look: Conn, tmp_path: Path
) -> None:
    text = """ALTER TABLE {schema}.t ADD CONSTRAINT positive CHECK (a > 0) NOT VALID;
              ALTER TABLE {schema}.t VALIDATE CONSTRAINT positive;"""
    versions = write_revisions(tmp_path / "v", TABLES)
    migrate(empty, versions=versions)
    steps: list[str] = []
    assert migrate(empty, steps.append, versions=write_revisions(versions, TABLES, text)) == ["0002"]
    assert steps == ["0002_step: step 1 of 2", "0002_step: step 2 of 2"]
    assert value(look, "SELECT convalidated FROM pg_constraint WHERE conname = 'positive'") is True


def test_a_partition_whose_detaching_was_interrupted_is_finalised(
    empty: Settings, look: Conn, holder: Conn, tmp_path: Path
) -> None:
    parts = "CREATE TABLE {schema}.p (a int) PARTITION BY RANGE (a);"
    parts += "CREATE TABLE {schema}.p1 PARTITION OF {schema}.p FOR VALUES FROM (0) TO (9);"
    versions = write_revisions(tmp_path / "v", parts)
    migrate(empty, versions=versions)
    holder.execute("SELECT * FROM pushops.p")
    look.execute("SET statement_timeout = '200ms'")
    with pytest.raises(psycopg.errors.QueryCanceled):
        look.execute("ALTER TABLE pushops.p DETACH PARTITION pushops.p1 CONCURRENTLY")
    holder.commit()
    assert value(look, "SELECT inhdetachpending FROM pg_inherits") is True
    write_revisions(versions, parts, "ALTER TABLE {schema}.p DETACH PARTITION {schema}.p1 CONCURRENTLY;")
    assert migrate(empty, versions=versions) == ["0002"]
    assert value(look, "SELECT count(*) FROM pg_inherits") == 0


def test_percent_signs_dollar_quotes_and_other_braces_stand_as_they_are(
    empty: Settings, look: Conn, tmp_path: Path
) -> None:
    text = "CREATE FUNCTION {schema}.f() RETURNS text LANGUAGE plpgsql AS $f$ BEGIN RETURN '50% %s {x} :y ;'; END $f$;"
    migrate(empty, versions=write_revisions(tmp_path / "v", text))
    assert value(look, "SELECT pushops.f()") == "50% %s {x} :y ;"


def test_a_role_without_rights_is_told_what_it_needs(look: Conn, empty_database_url: str) -> None:
    look.execute(b"DROP ROLE IF EXISTS plain")
    look.execute(b"CREATE ROLE plain LOGIN")
    plain = make_settings(empty_database_url.replace("//pushops@", "//plain@"))
    with pytest.raises(DatabaseError, match='CREATE SCHEMA "pushops" AUTHORIZATION "plain"'):
        migrate(plain)
    look.execute(b"CREATE SCHEMA pushops")
    look.execute(b"GRANT USAGE ON SCHEMA pushops TO plain")
    with pytest.raises(DatabaseError, match='GRANT CREATE, USAGE ON SCHEMA "pushops" TO "plain"'):
        migrate(plain)
    look.execute(b"GRANT CREATE ON SCHEMA pushops TO plain")
    assert migrate(plain)[0] == "0001"


def test_a_long_step_does_not_outlive_its_lease(
    empty: Settings, look: Conn, holder: Conn, tmp_path: Path, empty_database_url: str
) -> None:
    versions = write_revisions(tmp_path / "v", TABLES)
    migrate(empty, versions=versions)
    write_revisions(versions, TABLES, INDEX)
    holder.execute("INSERT INTO pushops.t VALUES (1)")
    with migration(empty_database_url, versions, lease_seconds=1) as running:
        wait_until(lambda: value(look, BUILDING) == 1, 30, "an index that is being built")
        first = value(look, EXPIRES)
        wait_until(lambda: value(look, EXPIRES) > first, 30, "a lease that is renewed while the index is built")
        assert value(look, BUILDING) == 1
        holder.commit()
        assert running.ends() == ["0002"]


def test_behind_a_pooler_no_setting_outlives_its_transaction(tmp_path: Path, fresh_postgres: PostgresServer) -> None:
    fresh_postgres.query("ALTER SYSTEM SET log_statement = 'all'")
    fresh_postgres.restart()
    versions = write_revisions(tmp_path / "v", TABLES, INDEX)
    migrate(make_settings(fresh_postgres.url(), pooler=True), versions=versions)
    behind = fresh_postgres.log.read_text()
    migrate(make_settings(fresh_postgres.url(), db_schema="direct"), versions=versions)
    direct = fresh_postgres.log.read_text()[len(behind) :]
    assert "CREATE INDEX CONCURRENTLY" in behind
    assert "false)" in direct  # set_config's is_local: what the next line looks for can be found
    assert not any(word in behind for word in ("false)", "SET SESSION", "advisory", "PREPARE"))


def test_the_script_passes_squawk(empty: Settings) -> None:
    assert squawk(render_sql(empty)) == 0


def test_squawk_would_refuse_an_index_that_blocks_writers(empty: Settings, tmp_path: Path) -> None:
    blocking = "CREATE INDEX t_a ON {schema}.t (a);"
    assert squawk(render_sql(empty, versions=write_revisions(tmp_path / "v", TABLES, blocking))) != 0


def test_the_script_run_by_psql_gives_a_migrated_database(empty: Settings, tmp_path: Path) -> None:
    script = tmp_path / "all.sql"
    script.write_text(render_sql(empty))
    assert empty.database_url is not None
    command = [postgres_programs() / "psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", script]
    subprocess.run([*command, "-d", empty.database_url.get_secret_value()], check=True, timeout=30)
    assert current(empty) is not None
    assert migrate(empty) == []


def squawk(script: str) -> int:
    program = Path(sys.executable).with_name("squawk")
    command = [program, "--stdin-filepath", "migrations.sql", "--config", Path(__file__).parents[2] / ".squawk.toml"]
    return subprocess.run(command, input=script, text=True, capture_output=True, check=False, timeout=30).returncode
