"""What a database or a role has for defaults changes nothing for us."""

import pytest

from pushops.db.migrate import current, pending
from pushops.runtime import Runtime, open_runtime
from pushops.settings import Settings
from pushops.subscriptions import service
from tests.browser import subscribe
from tests.rows import Pg

NAME = "\u00e4\u20ac\u4e2d"


@pytest.mark.parametrize(
    "default",
    [
        "DateStyle = 'SQL, DMY'",
        "DateStyle = 'German'",
        "IntervalStyle = 'iso_8601'",
        "bytea_output = 'escape'",
        "client_encoding = 'LATIN1'",
        "TimeZone = 'Asia/Kolkata'",
    ],
)
def test_verbs_work_under_any_default(settings: Settings, pg: Pg, default: str) -> None:
    pg.execute(f"ALTER DATABASE {pg.info.dbname} SET {default}")
    assert (current(settings) is not None, pending(settings)) == (True, [])
    runtime = open_runtime(settings)
    try:
        _save_touch_and_read(runtime)
    finally:
        runtime.close()


def _save_touch_and_read(runtime: Runtime) -> None:
    browser = subscribe()
    saved = service.save_subscription(runtime, browser, user_id=NAME, tags=[NAME])
    service.touch(runtime, browser["endpoint"])
    (found,) = service.list_subscriptions(runtime, user=NAME).rows
    assert (found.id, found.user_id) == (saved.id, NAME)
    assert service.detach(runtime, browser["endpoint"])
