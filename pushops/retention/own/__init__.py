"""Tables of yours: declared in the settings, looked at in the database, refused or walked by the engine."""
