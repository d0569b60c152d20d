"""The Sentry sink: errors and pages, scrubbed; never a request body, a local variable or a tracing header."""

from typing import Final

import sentry_sdk

from pushops.events.api import Fields, Level, Sink

_SENT: Final = {Level.ERROR: "error", Level.PAGE: "fatal"}


def sentry_sink(dsn: str) -> Sink:
    """Start Sentry for this process and give the sink. Frames carry no local variables: they may hold keys."""
    sentry_sdk.init(
        dsn=dsn,
        send_default_pii=False,
        include_local_variables=False,
        max_request_body_size="never",
        trace_propagation_targets=[],
        default_integrations=False,
    )

    def sink(level: Level, name: str, fields: Fields) -> None:
        if level in _SENT:
            with sentry_sdk.new_scope() as scope:
                scope.set_context("pushops", {key: str(value) for key, value in fields.items()})
                scope.fingerprint = [name, str(fields.get("error", ""))]
                sentry_sdk.capture_message(name, level=_SENT[level])  # type: ignore[arg-type]

    return sink
