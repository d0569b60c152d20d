"""Where the database is, as libpq wants it."""

from psycopg import ProgrammingError
from psycopg.conninfo import make_conninfo

from pushops.errors import SettingsError
from pushops.settings import Settings


def conninfo(settings: Settings, application_name: str) -> str:
    """The URL with what every connection of ours has; raises SettingsError, which never repeats it.

    In UTF-8, whatever the database or the role says: names of users are any text.
    """
    if settings.database_url is None:
        raise SettingsError('expected PUSHOPS_DATABASE_URL to be set (for a sandbox: eval "$(pushops sandbox env)")')
    try:
        return make_conninfo(
            settings.database_url.get_secret_value(),
            application_name=application_name,
            connect_timeout=5,
            client_encoding="utf8",
        )
    except ProgrammingError:  # its text repeats what it could not read
        raise SettingsError(
            "expected PUSHOPS_DATABASE_URL to be a libpq URL such as postgresql://user@host/db"
            " (percent-encode special characters in the password), got a value that is not shown"
        ) from None
