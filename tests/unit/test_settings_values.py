"""What settings may be, alone and together."""

import pytest
from pydantic import SecretStr

from pushops.errors import SettingsError
from pushops.settings import load_settings, parse_duration
from tests.commands import call


@pytest.mark.parametrize("window", ["stale_after", "pending_expire_after"])
@pytest.mark.parametrize(("cadence", "most", "more"), [("daily", "21h", "22h"), ("weekly", "42h", "43h")])
def test_a_browser_that_reports_often_is_written_down_well_within_its_window(
    window: str, cadence: str, most: str, more: str
) -> None:
    load_settings(**{window: "7d"}, cadence=cadence, last_seen_throttle=most)
    with pytest.raises(SettingsError) as caught:
        load_settings(**{window: "7d"}, cadence=cadence, last_seen_throttle=more)
    assert "expected PUSHOPS_LAST_SEEN_THROTTLE to be at most a quarter of" in str(caught.value)
    assert f"PUSHOPS_{window.upper()} as it is in force" in str(caught.value)
    assert str(caught.value).endswith(f"got {more}")


def test_a_duration_beyond_all_calendars_is_a_wrong_value_like_any_other() -> None:
    with pytest.raises(ValueError, match="not a duration"):
        parse_duration("999999999w")
    done = call("config", PUSHOPS_STALE_AFTER="999999999w")
    assert done.code == 1
    assert "expected PUSHOPS_STALE_AFTER to be a duration between 7d and 365d" in done.err


@pytest.mark.parametrize("dsn", ["hush", "https://hush@sentry.example/notanumber", "https://hush@sentry.example:x/1"])
def test_a_bad_sentry_dsn_is_refused_unseen(dsn: str) -> None:
    done = call("config", PUSHOPS_SENTRY_DSN=dsn)
    assert done.code == 1
    assert "expected PUSHOPS_SENTRY_DSN to be a Sentry DSN, got a value that is not shown" in done.err
    assert "hush" not in done.text


@pytest.mark.parametrize("dsn", ["", "https://key@sentry.example/1", "https://key@sentry.example:9000/path/1"])
def test_a_sentry_dsn_is_taken(dsn: str) -> None:
    assert load_settings(sentry_dsn=SecretStr(dsn)).sentry_dsn == SecretStr(dsn)
