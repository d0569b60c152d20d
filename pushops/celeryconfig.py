"""When and where: broker, queues, routes, schedule. Copy this file beside your project to change it.

Read by `pushops.tasks`; a `celeryconfig` module on the path is read in its place.
"""

from celery.schedules import crontab
from kombu import Queue

from pushops.runtime import settings_or_sandbox

_settings = settings_or_sandbox()

# Where
broker_url = _settings.broker_url.get_secret_value() if _settings.broker_url else None
task_default_queue = _settings.queue
task_queues = [Queue(_settings.queue)]
task_routes = {"pushops.*": {"queue": _settings.queue}}

# What a lost worker, broker or message costs: nothing, the rows are found again.
task_acks_late = True
task_reject_on_worker_lost = True
worker_prefetch_multiplier = 1
# A broker that blinks kills no batch in hand: killed, it would wait for its lease, and count as a death. Its message
# comes a second time, and finds the receipt.
worker_cancel_long_running_tasks_on_connection_loss = False
broker_connection_retry_on_startup = True

# A task works for about a second. The hard limit stays far below the visibility timeout, after which Redis
# would deliver the same message again while the first worker is still at it.
task_soft_time_limit = 120
task_time_limit = 150
broker_transport_options = {
    "visibility_timeout": 600,
    "socket_timeout": _settings.broker_timeout.total_seconds(),
    "socket_connect_timeout": _settings.broker_timeout.total_seconds(),
    "socket_keepalive": True,
    "health_check_interval": 30,
}

# Nobody asks for results, and results would fill the broker.
task_ignore_result = True
result_backend = None
task_store_errors_even_if_ignored = False
worker_send_task_events = False

task_serializer = "json"
accept_content = ["json"]

# A publisher never waits long for a broker: what was not published stays due.
task_publish_retry = True
task_publish_retry_policy = {"max_retries": 2, "interval_start": 0.1, "interval_step": 0.2, "interval_max": 0.5}

# Memory comes back when a child is replaced; acks late makes that harmless.
worker_max_tasks_per_child = 10_000
worker_hijack_root_logger = False
# Events go to stderr as they are, one JSON object a line; Celery would put its own prefix and level before each.
worker_redirect_stdouts = False

# When: UTC, so that no night has 23 or 25 hours. Late or twice is harmless: the tables say what is left to do.
timezone = "UTC"
enable_utc = True


# Each tick expires before the next but one: after a day without workers they catch up once, not a day's ticks.
def _nightly(sweep: str, hour: int, minute: int) -> dict[str, object]:
    return _dispatch(sweep, crontab(hour=hour, minute=minute), expires=12 * 3600)


def _hourly(sweep: str, minute: int) -> dict[str, object]:
    return _dispatch(sweep, crontab(minute=minute), expires=3600)


def _dispatch(sweep: str, schedule: crontab, *, expires: int) -> dict[str, object]:
    return {"task": "pushops.dispatch_sweep", "schedule": schedule, "args": [sweep], "options": {"expires": expires}}


beat_schedule = {
    "age-stale": _hourly("age-stale", 5),
    "age-expired": _hourly("age-expired", 20),
    "scrub-tombstones": _hourly("scrub-tombstones", 35),
    "purge-tombstones": _nightly("purge-tombstones", 2, 0),
    "close-dead-letters": _dispatch("close-dead-letters", crontab(minute="*/10"), expires=600),
    "purge-dead-letters": _nightly("purge-dead-letters", 3, 10),
    "purge-receipts": _nightly("purge-receipts", 3, 40),
    "purge-runs": _nightly("purge-runs", 3, 50),
    "purge-payloads": _nightly("purge-payloads", 3, 55),
    # What lies in the payload store, and whose message was never made.
    "purge-orphans": {
        "task": "pushops.purge_orphans",
        "schedule": crontab(hour=3, minute=55),
        "options": {"expires": 12 * 3600},
    },
    "purge-periods": _nightly("purge-periods", 4, 10),
    # What processes with old settings sealed since the last roll of the seal keys.
    "reseal-auth": {"task": "pushops.reseal_auth", "schedule": crontab(minute=45), "options": {"expires": 3600}},
    # Who asked to be forgotten, and whose doorbell was lost; what is late.
    "apply-erasures": {"task": "pushops.apply_erasures", "schedule": 60.0, "options": {"expires": 60.0}},
    # Open runs get another slot of their time budget.
    "resume-sweeps": {"task": "pushops.resume_sweeps", "schedule": crontab(minute="*/5"), "options": {"expires": 300}},
    # Lost messages, dead workers and valves that opened again are noticed within this.
    "tend-sweeps": {"task": "pushops.tend_sweeps", "schedule": 10.0, "options": {"expires": 10.0}},
    # What waited for a retry or a push service's Retry-After; what was rung for and lost.
    "send-due": {"task": "pushops.send_due", "schedule": 5.0, "options": {"expires": 5.0}},
    # What workers had claimed that are gone.
    "reap-claims": {"task": "pushops.reap_claims", "schedule": 15.0, "options": {"expires": 15.0}},
    # Letters that nobody has written yet: their worker died, or their table refused.
    "tend-dead-letters": {"task": "pushops.tend_dead_letters", "schedule": 30.0, "options": {"expires": 30.0}},
    # What an interrupted guard left to do, holds whose key is back, rows of campaigns that go on.
    "tend-health": {"task": "pushops.tend_health", "schedule": 10.0, "options": {"expires": 10.0}},
    # Messages that begin now, whose doorbell was lost, or that have come to their end.
    "tend-messages": {"task": "pushops.tend_messages", "schedule": 5.0, "options": {"expires": 5.0}},
    # What imports left in staging whose process died.
    "tidy-imports": {"task": "pushops.tidy_imports", "schedule": crontab(minute="*/5"), "options": {"expires": 300}},
    "purge-messages": _nightly("purge-messages", 4, 20),
    "purge-evidence": _nightly("purge-evidence", 4, 30),
    "purge-answers": _nightly("purge-answers", 4, 40),
    "purge-audit": _nightly("purge-audit", 4, 50),
    "purge-ledger": {
        "task": "pushops.purge_ledger",
        "schedule": crontab(hour=3, minute=25),
        "options": {"expires": 12 * 3600},
    },
    "make-partitions": {
        "task": "pushops.make_partitions",
        "schedule": crontab(minute=50),
        "options": {"expires": 3600},
    },
}
# Tables of your own, where their sections say when; called so that none takes the place of an entry above.
for _name, _own in _settings.sweeps.items():
    if _own.schedule is not None:
        beat_schedule[f"sweeps.{_name}"] = _nightly(_name, int(_own.schedule[:2]), int(_own.schedule[3:]))
beat_max_loop_interval = 5
