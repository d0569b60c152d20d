"""A table of another application as a source: it is read under one snapshot, and holds nothing up afterwards."""

from pushops.importing.tables import read_table
from pushops.settings import Settings
from tests.rows import Pg


def test_the_snapshot_goes_with_the_last_row(pg: Pg, settings: Settings) -> None:
    """Storing takes long, and no vacuum of the whole database gets past a snapshot that is still held."""
    assert settings.database_url is not None
    pg.execute("CREATE TABLE devices (id serial PRIMARY KEY, endpoint text)")
    pg.execute("INSERT INTO devices (endpoint) VALUES ('one'), ('two')")
    with read_table(settings.database_url.get_secret_value(), "pushops.devices", {}) as source:
        assert next(source.rows) == (1, ["one"])
        assert state(pg) == "idle in transaction"
        assert list(source.rows) == [(2, ["two"])]
        assert state(pg) == "idle"


def state(pg: Pg) -> str:
    found = pg.execute(
        "SELECT state FROM pg_stat_activity WHERE application_name = 'pushops import' AND datname = current_database()"
    ).fetchone()
    assert found is not None
    return str(found[0])
