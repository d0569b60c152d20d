"""The settings themselves, with defaults. Reasons for the numbers: docs/settings.md."""

import os
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, model_validator
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from pushops.settings.own import OwnTable, own_name
from pushops.settings.partitions import PartitionedTable
from pushops.settings.urls import BrokerUrl, DatabaseUrl, ProxyUrl, SentryDsn
from pushops.settings.values import (
    Duration,
    Expected,
    Identifier,
    OptionalFile,
    PayloadUrl,
    format_duration,
    integer,
    is_version,
    json_object,
    looks_like_key,
    share,
)

PREFIX: Final = "PUSHOPS_"


def config_file() -> Path:
    """The settings file; it need not exist."""
    return Path(os.environ.get("PUSHOPS_CONFIG", "pushops.toml"))


class Cadence(StrEnum):
    """How often this sender usually sends; windows that follow the sender scale with it."""

    DAILY = "daily"
    WEEKLY = "weekly"
    MONTHLY = "monthly"


CADENCE_FACTOR: Final = {Cadence.DAILY: 0.5, Cadence.WEEKLY: 1.0, Cadence.MONTHLY: 2.0}
CADENCED: Final = (
    "stale_after",
    "expire_after",
    "pending_expire_after",
    "untried_after",
    "vote_min_gap",
    "vote_min_span",
)

_SecretMap = Annotated[
    dict[str, SecretStr],
    NoDecode,
    BeforeValidator(json_object),
    Expected('a JSON object of id to base64url key, such as {"1": "..."}: see pushops keys generate'),
]
_HostMap = Annotated[
    dict[str, str],
    NoDecode,
    BeforeValidator(json_object),
    Expected('a JSON object of host pattern to label, such as {"push.example.org": "own"}'),
]


_TargetMap = Annotated[
    dict[str, Annotated[str, Field(pattern=r"^(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]+):[0-9]{1,5}$")]],
    NoDecode,
    BeforeValidator(json_object),
    Expected('a JSON object of host pattern to host:port, such as {"fcm.googleapis.com": "127.0.0.1:8443"}'),
]
_HostList = Annotated[
    list[str],
    NoDecode,
    BeforeValidator(json_object),
    Expected('a JSON array of host patterns, such as ["push.example.org"]'),
]
_PartitionMap = Annotated[
    dict[Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,39}$")], PartitionedTable],
    NoDecode,
    BeforeValidator(json_object),
    Expected("sections [partitions.NAME], NAME of lower-case letters, digits and hyphens"),
]
_SweepMap = Annotated[
    dict[Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,39}$"), AfterValidator(own_name)], OwnTable],
    NoDecode,
    BeforeValidator(json_object),
    Expected("sections [sweeps.NAME], NAME of lower-case letters, digits and hyphens, and of no sweep that there is"),
]
_RateMap = Annotated[
    dict[str, Annotated[float, Field(gt=0, le=1_000_000)]],
    NoDecode,
    BeforeValidator(json_object),
    Expected('a JSON object of push service to messages a second, such as {"fcm": 5000}'),
]


class Settings(BaseSettings):
    """All of ``PUSHOPS_*`` and ``pushops.toml``; the environment wins."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="forbid", frozen=True, hide_input_in_errors=True)

    # Where things are
    database_url: DatabaseUrl = None
    broker_url: BrokerUrl = None
    redis_url: BrokerUrl = None
    db_schema: Identifier = "pushops"
    queue: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,100}$"), Expected("a queue name")] = "pushops"
    pool_size: Annotated[int, integer(2, 200)] = 4
    pooler: Annotated[bool, Expected("true or false")] = False
    statement_timeout: Annotated[timedelta, Duration("10ms", "5m")] = timedelta(seconds=5)
    lock_timeout: Annotated[timedelta, Duration("10ms", "1m")] = timedelta(seconds=1)
    broker_timeout: Annotated[timedelta, Duration("100ms", "1m")] = timedelta(seconds=2)

    # Keys
    log_hmac_key: Annotated[SecretStr | None, Expected("a base64url key of 32 bytes: see pushops keys generate")] = None
    seal_keys: _SecretMap = {}
    seal_key_version: Annotated[int | None, Field(ge=1), Expected("a version that PUSHOPS_SEAL_KEYS holds")] = None
    vapid_keys: _SecretMap = {}
    vapid_key_id: Annotated[str | None, Expected("an id that PUSHOPS_VAPID_KEYS holds")] = None
    vapid_subject: Annotated[str | None, Expected("a mailto: or https: URI that reaches you")] = None
    key_provider: Annotated[str | None, Field(pattern=r"^[\w.]+:\w+$"), Expected("module:function")] = None

    # Intake
    endpoint_max: Annotated[int, integer(512, 8192)] = 2048
    extra_hosts: _HostMap = {}
    max_live_per_user: Annotated[int | None, Field(ge=1), Expected("a positive integer")] = None
    last_seen_throttle: Annotated[timedelta, Duration("1s", "7d")] = timedelta(hours=1)
    reconnection_window: Annotated[timedelta, Duration("1d", "365d")] = timedelta(days=30)

    # When a 404 is believed
    votes: Annotated[int, integer(2, 20)] = 3
    vote_min_gap: Annotated[timedelta, Duration("1h", "7d")] = timedelta(hours=6)
    vote_min_span: Annotated[timedelta, Duration("2h", "30d")] = timedelta(hours=24)

    # Answers of push services, and trying again
    classification: OptionalFile = None
    retry_base: Annotated[timedelta, Duration("100ms", "1h")] = timedelta(seconds=30)
    retry_cap: Annotated[timedelta, Duration("1s", "1d")] = timedelta(hours=1)
    retry_attempts: Annotated[int, integer(1, 100)] = 10
    retry_jitter: Annotated[float, share(0, 0.5)] = 0.2
    retry_after_max: Annotated[timedelta, Duration("1s", "1d")] = timedelta(hours=1)
    throttle_default: Annotated[timedelta, Duration("1s", "1h")] = timedelta(seconds=60)

    # When a push service, or one of our keys there, is believed to be in trouble
    guard_min: Annotated[int, integer(20, 1_000_000)] = 100
    guard_streak: Annotated[int, integer(5, 10_000)] = 20
    guard_floor: Annotated[float, share(0.01, 1)] = 0.05
    guard_ceiling: Annotated[float, share(0.01, 1)] = 0.2
    unhealthy_ratio: Annotated[float, share(0.1, 1)] = 0.7
    unhealthy_window: Annotated[timedelta, Duration("1m", "1h")] = timedelta(minutes=5)
    unhealthy_min: Annotated[int, integer(2, 1_000_000)] = 20
    unhealthy_probe: Annotated[timedelta, Duration("1s", "1h")] = timedelta(seconds=30)
    hold_faults: Annotated[int, integer(2, 20)] = 5
    hold_window: Annotated[timedelta, Duration("10s", "1h")] = timedelta(minutes=5)

    # How long things are kept
    cadence: Annotated[Cadence, Expected("daily, weekly or monthly")] = Cadence.WEEKLY
    stale_after: Annotated[timedelta, Duration("7d", "365d")] = timedelta(days=30)
    expire_after: Annotated[timedelta, Duration("7d", "730d")] = timedelta(days=60)
    pending_expire_after: Annotated[timedelta, Duration("7d", "365d")] = timedelta(days=30)
    untried_after: Annotated[timedelta, Duration("30d", "730d")] = timedelta(days=180)
    undo_window: Annotated[timedelta, Duration("1h", "30d")] = timedelta(hours=72)
    tombstone_retention: Annotated[timedelta, Duration("31d", "3650d")] = timedelta(days=90)
    period_retention: Annotated[timedelta, Duration("31d", "3650d")] = timedelta(days=90)
    receipt_retention: Annotated[timedelta, Duration("7d", "365d")] = timedelta(days=30)
    ledger_retention: Annotated[timedelta, Duration("36d", "3650d")] = timedelta(days=90)
    audit_retention: Annotated[timedelta, Duration("31d", "3650d")] = timedelta(days=90)
    dead_letter_retention: Annotated[timedelta, Duration("31d", "3650d")] = timedelta(days=90)
    payload_grace: Annotated[timedelta, Duration("1h", "30d")] = timedelta(hours=24)

    # Messages
    default_ttl: Annotated[timedelta, Duration("1s", "28d")] = timedelta(days=1)
    payload_store: PayloadUrl = None
    renderer: Annotated[str | None, Field(pattern=r"^[\w.]+:\w+$"), Expected("module:function")] = None

    # Sending: messages a second and requests at once, for each push service; shifts at once in the whole fleet
    provider_rate: Annotated[float, Field(gt=0, le=1_000_000), Expected("messages a second")] = 1_000
    provider_rates: _RateMap = {}
    in_flight: Annotated[int, integer(1, 10_000)] = 100
    in_flight_total: Annotated[int, integer(1, 50_000)] = 500
    senders: Annotated[int, integer(1, 1_000)] = 16
    send_lease: Annotated[timedelta, Duration("30s", "1h")] = timedelta(seconds=60)

    # Dead letters: where they wait while the database refuses them, and how they are sent again
    spool: OptionalFile = None
    dead_letter_timeout: Annotated[timedelta, Duration("100ms", "30s")] = timedelta(seconds=2)
    replay_share: Annotated[float, share(0.001, 1)] = 0.1
    replay_ramp: Annotated[timedelta, Duration("1s", "1h")] = timedelta(minutes=1)
    replay_attempts: Annotated[int, integer(1, 20)] = 5
    replay_lease: Annotated[timedelta, Duration("30s", "1h")] = timedelta(seconds=300)
    replay_parallel: Annotated[int, integer(1, 64)] = 8

    # The way to the push services
    connect_timeout: Annotated[timedelta, Duration("100ms", "30s")] = timedelta(seconds=3.05)
    read_timeout: Annotated[timedelta, Duration("1s", "25s")] = timedelta(seconds=10)
    ca_file: OptionalFile = None
    proxy: ProxyUrl = None
    connect_to: _TargetMap = {}
    allow_private_hosts: _HostList = []

    # Sweeps
    sweep_batch_rows: Annotated[int, integer(1, 20_000)] = 5_000
    sweep_pause_ms: Annotated[int, integer(0, 60_000)] = 100
    sweep_budget_ms: Annotated[int, integer(1_000, 86_400_000)] = 240_000
    sweep_target_batch_ms: Annotated[int, integer(5, 5_000)] = 50
    sweep_max_parallel: Annotated[int, integer(1, 64)] = 2
    sweep_max_queue: Annotated[int, integer(1, 10_000)] = 200
    sweep_low_water: Annotated[int, integer(0, 10_000)] = 50
    sweep_max_share: Annotated[float, share(0.0001, 1)] = 0.2
    sweep_max_lag_bytes: Annotated[int, integer(0, 2**50)] = 64 * 1024 * 1024
    sweep_max_lag_give_up: Annotated[timedelta, Duration("1s", "1h")] = timedelta(seconds=60)
    sweep_grace: Annotated[timedelta, Duration("1s", "1h")] = timedelta(seconds=60)
    sweep_lease: Annotated[timedelta, Duration("5s", "1h")] = timedelta(seconds=30)
    sweep_walk: Annotated[Literal["auto", "index", "blocks"], Expected("auto, index or blocks")] = "auto"
    expected_replicas: Annotated[int | None, Field(ge=0), Expected("how many replicas must be visible")] = None
    snapshot_report_after: Annotated[timedelta, Duration("1m", "7d")] = timedelta(minutes=20)
    snapshot_hold_after: Annotated[
        Annotated[timedelta, Duration("1m", "7d")] | None, Expected("a duration such as 1h")
    ] = None
    stop_file: OptionalFile = None

    # Tables of yours, in pushops.toml
    partitions: _PartitionMap = {}
    sweeps: _SweepMap = {}

    # Events
    log_format: Annotated[Literal["json", "console"], Expected("json or console")] = "json"
    log_level: Annotated[Literal["debug", "info", "warning", "error"], Expected("debug, info, warning or error")] = (
        "info"
    )
    sentry_dsn: SentryDsn = None

    @model_validator(mode="after")
    def _check_low_water(self) -> Self:
        if self.sweep_low_water >= self.sweep_max_queue:
            raise ValueError(
                f"expected PUSHOPS_SWEEP_LOW_WATER to be below PUSHOPS_SWEEP_MAX_QUEUE ({self.sweep_max_queue}),"
                f" got {self.sweep_low_water}"
            )
        return self

    @model_validator(mode="after")
    def _check_key_ids(self) -> Self:
        """Ids are shown, so a key in the place of its id must go no further."""
        others = sum(not is_version(key_id) for key_id in self.seal_keys)
        if others:
            raise ValueError(
                "expected PUSHOPS_SEAL_KEYS to have versions for ids, which are positive integers,"
                f" got {others} of {len(self.seal_keys)} that are not, and are not shown"
            )
        if any(looks_like_key(key_id) for key_id in self.vapid_keys):
            raise ValueError("expected PUSHOPS_VAPID_KEYS to be id to key, got an id that looks like a key, not shown")
        return self

    @model_validator(mode="after")
    def _check_seal_key_version(self) -> Self:
        if self.seal_keys and str(self.current_seal_version) not in self.seal_keys:
            raise ValueError(
                f"expected PUSHOPS_SEAL_KEY_VERSION to name one of {sorted(self.seal_keys)},"
                f" got {self.seal_key_version}"
            )
        return self

    @model_validator(mode="after")
    def _check_statement_fits_lease(self) -> Self:
        if self.statement_timeout * 2 > self.sweep_lease:
            raise ValueError("expected PUSHOPS_SWEEP_LEASE to be at least twice PUSHOPS_STATEMENT_TIMEOUT")
        return self

    @model_validator(mode="after")
    def _check_retry_cap(self) -> Self:
        if self.retry_cap < self.retry_base:
            raise ValueError(
                f"expected PUSHOPS_RETRY_CAP to be at least PUSHOPS_RETRY_BASE ({format_duration(self.retry_base)}),"
                f" got {format_duration(self.retry_cap)}"
            )
        return self

    @model_validator(mode="after")
    def _check_guard_bounds(self) -> Self:
        if self.guard_floor > self.guard_ceiling:
            raise ValueError("expected PUSHOPS_GUARD_FLOOR to be at most PUSHOPS_GUARD_CEILING")
        return self

    @model_validator(mode="after")
    def _check_throttle_fits_windows(self) -> Self:
        """A browser that reports often is written down often enough to count as one that does."""
        name = min(("stale_after", "pending_expire_after"), key=self.window)
        if self.last_seen_throttle * 4 > self.window(name):
            raise ValueError(
                f"expected PUSHOPS_LAST_SEEN_THROTTLE to be at most a quarter of {PREFIX}{name.upper()} as it is in"
                f" force ({format_duration(self.window(name))}), got {format_duration(self.last_seen_throttle)}"
            )
        return self

    @property
    def current_seal_version(self) -> int | None:
        """The version that seals; with one key there is nothing to choose."""
        numbers = [int(version) for version in self.seal_keys if version.isdecimal()]
        return self.seal_key_version or (numbers[0] if len(self.seal_keys) == len(numbers) == 1 else None)

    def rate_of(self, service: str) -> float:
        """Messages a second that a push service may be sent."""
        return self.provider_rates.get(service, self.provider_rate)

    def window(self, name: str) -> timedelta:
        """A window as it is in force: scaled by the cadence where it follows the sender."""
        value: timedelta = getattr(self, name)
        return value * CADENCE_FACTOR[self.cadence] if name in CADENCED else value

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003  (pydantic names it)
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003  (pydantic names it)
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, config_file())
