"""Adopting a table: look at it, say what is left to do, do it step by step, and end the bridge."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from pushops.adopting import ddl, store
from pushops.adopting.steps import STEPS, How, Step
from pushops.adopting.words import Adoption, Hash, Losers
from pushops.db import Tx
from pushops.db.patience import outside, persist
from pushops.errors import DataError, NotFoundError, RefusedError
from pushops.runtime import Runtime
from pushops.sweeps.inline import Told, run_inline
from pushops.sweeps.order import Order

ROUNDS: Final = 5  # of removing duplicates and building the unique index, should more come in between
TRIES: Final = 20  # for a lock, as migrations have
LOOK: Final = timedelta(minutes=10)  # what reads the whole table
TIMES: Final = ("timestamp with time zone", "timestamp without time zone", "date")


@dataclass(frozen=True)
class StepState:
    name: str
    meaning: str
    done: bool


@dataclass(frozen=True)
class Plan:
    """``endpoints`` have several rows, ``too_many`` of them; ``lost`` rows were marked or removed so far."""

    table: str
    steps: list[StepState]
    endpoints: int
    too_many: int
    lost: int
    bridged: bool

    @property
    def done(self) -> bool:
        return all(step.done for step in self.steps)


def look(
    rt: Runtime,
    name: str,
    *,
    endpoint: str = "endpoint",
    column: str = "endpoint_hash",
    hash_: Hash = Hash.SHA256,
    latest: str | None = None,
    losers: Losers = Losers.MARK,
) -> Adoption:
    """The adoption of a table that is there and fit for it. Raises NotFoundError and RefusedError."""
    schema, _, table = name.rpartition(".")
    schema = schema or "public"
    with rt.db.transaction() as tx:
        found = store.table(tx, schema, table)
        if found is None:
            raise NotFoundError(f"expected a table of this database, got {schema}.{table}: there is none")
        if schema == tx.schema:
            raise RefusedError(f"expected a table of yours, got one of pushops' own: {name}")
        if found.kind != "r":
            raise RefusedError(f"expected {name} to be an ordinary table: no index of a partitioned one is made online")
        if found.key is None or found.key_type is None:
            raise RefusedError(f"expected {name} to have a primary key of one column")
        one = Adoption(schema, table, found.key, found.key_type, endpoint, column, hash_, latest, losers)
        _check(tx, one, found.referring)
    return one


def _check(tx: Tx, one: Adoption, referring: int) -> None:
    kind = store.type_of(tx, one, one.endpoint)
    if kind not in ("text", "character varying"):
        raise RefusedError(f"expected {one.plain} to have a column {one.endpoint} of type text, got {kind or 'none'}")
    if one.endpoint == one.key:
        raise RefusedError(f"expected {one.plain} to be keyed by something else than the endpoint: that is unique now")
    if store.type_of(tx, one, one.column) not in (None, "bytea"):
        raise RefusedError(f"expected {one.column} to be free, or a bytea; --column names another")
    if one.latest is not None and store.type_of(tx, one, one.latest) not in TIMES:
        raise RefusedError(f"expected --latest to name a column of a time, got {one.latest}")
    if one.losers is Losers.REMOVE and referring:
        raise RefusedError(f"expected no foreign key to {one.plain} where rows are removed, got {referring}: mark them")


def plan(rt: Runtime, one: Adoption) -> Plan:
    """How far it is; reads the table, and changes nothing."""
    with rt.db.transaction(statement_timeout=LOOK) as tx:
        steps = [StepState(step.name, step.meaning, step.done(tx, one)) for step in STEPS]
        endpoints, too_many = (0, 0) if steps[-2].done else store.duplicates(tx, one)
        bridged = ddl.BRIDGING in (store.trigger(tx, one) or "")
        return Plan(one.plain, steps, endpoints, too_many, store.losers(tx, one), bridged)


def script(one: Adoption, schema: str) -> str:
    """All of it for psql. What pushops does in pages stands as a loop that commits each."""
    parts = []
    for step in STEPS:
        statements = step.sql(one) if step.sql else [_loop(one, step)]
        texts = [statement.replace("{schema}", f'"{schema}"') + ";" for statement in statements]
        parts.append("\n".join((f"-- {step.name}: {step.meaning}", *texts)))
    return "\n\n".join(parts)


def _loop(one: Adoption, step: Step) -> str:
    """Some thousand rows a transaction; it looks for them from the start each time, which pushops need not."""
    sweep = step.sweep(one) if step.sweep else None
    if sweep is None or sweep.effect is None:
        raise TypeError(f"expected {step.name} to be a sweep")
    some = f"ctid = ANY (ARRAY (SELECT ctid FROM {one.relation} WHERE {sweep.predicate} LIMIT 5000 FOR UPDATE))"
    effect = sweep.effect.replace("{batch}", some)
    return (
        "DO $do$ DECLARE n integer; BEGIN\n  LOOP\n"
        f"    EXECUTE $one${effect}$one$ INTO n;\n"
        "    EXIT WHEN n = 0;\n    COMMIT;\n    PERFORM pg_sleep(0.1);\n  END LOOP;\nEND $do$"
    )


def run(rt: Runtime, one: Adoption, told: Told, say: Callable[[str], None], *, actor: str) -> Plan:
    """Do what is left, each step by itself; what was interrupted goes on from there. Raises RefusedError and others."""
    for _ in range(ROUNDS):
        try:
            for step in STEPS:
                _do_step(rt, one, step, told, say, actor=actor)
            return plan(rt, one)
        except DataError as error:
            if not str(error).startswith("23505"):
                raise
            say("more duplicates came meanwhile: once more")
    raise RefusedError(f"expected {one.plain} to stay without duplicates for a moment, they came {ROUNDS} times")


def finish(rt: Runtime, one: Adoption) -> None:
    """Take the bridge away, once everything that writes goes by the unique index. Raises RefusedError."""
    if not plan(rt, one).done:
        raise RefusedError(f"expected {one.plain} to be adopted: pushops adopt run {one.plain}")
    persist(rt.db, lambda tx: store.run(tx, ddl.function(one, bridge=False)), attempts=TRIES)
    rt.events.emit("adoption.step", table=one.plain, step="finish")


def _do_step(rt: Runtime, one: Adoption, step: Step, told: Told, say: Callable[[str], None], *, actor: str) -> None:
    if _is_done(rt, one, step):
        return
    say(f"{step.name}: {step.meaning}")
    match step.how:
        case How.LOCKED:
            persist(rt.db, lambda tx: _run_all(tx, one, step), patience=LOOK, attempts=TRIES)
        case How.OUTSIDE:
            _build(rt, one, step)
        case How.SWEPT:
            _sweep(rt, one, step, told, actor=actor)
    rt.events.emit("adoption.step", table=one.plain, step=step.name)


def _is_done(rt: Runtime, one: Adoption, step: Step) -> bool:
    with rt.db.transaction(statement_timeout=LOOK) as tx:
        return step.done(tx, one)


def _run_all(tx: Tx, one: Adoption, step: Step) -> None:
    for statement in step.sql(one) if step.sql and not step.done(tx, one) else []:
        store.run(tx, statement)


def _build(rt: Runtime, one: Adoption, step: Step) -> None:
    """Concurrently; an index that an interruption left INVALID goes first, and one that could not be built after."""
    name = step.index(one) if step.index else None
    if name is not None:
        _clean(rt, one, name)
    try:
        with outside(rt.settings, None) as conn:
            for statement in step.sql(one) if step.sql else []:
                conn.execute(statement.encode())
    except DataError:
        if name is not None:
            _clean(rt, one, name)
        raise


def _clean(rt: Runtime, one: Adoption, name: str) -> None:
    with rt.db.transaction() as tx:
        found = store.index(tx, one, name)
    if found is None or found.valid:
        return
    if found.building:
        raise RefusedError(f"expected nobody else to build the index {name}, somebody does: wait for it")
    with outside(rt.settings, None) as conn:
        for statement in ddl.dropped(one, name):
            conn.execute(statement.encode())


def _sweep(rt: Runtime, one: Adoption, step: Step, told: Told, *, actor: str) -> None:
    """A run of the engine with its valves; what others held meanwhile is looked for by another one."""
    sweep = step.sweep(one) if step.sweep else None
    if sweep is None:
        raise TypeError(f"expected {step.name} to be a sweep")
    for _ in range(ROUNDS):
        done = run_inline(rt, {sweep.name: sweep}, sweep, Order(actor), told)
        if done.state != "done":
            raise RefusedError(
                f"expected {step.name} to come to its end, it is {done.state}: {done.why or done.held_by}"
            )
        if _is_done(rt, one, step):
            return
    raise RefusedError(
        f"expected {step.name} to leave no row, some are left: see pushops sweep quarantine list, and run it again"
    )
