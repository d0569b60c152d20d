"""Alembic's entry: `pushops.db.migrate` brings the connection, so alembic's own command line does not work here."""

from alembic import context

brought = context.config.attributes
if "connection" not in brought:
    raise RuntimeError("expected to be run by `pushops migrate`, got alembic's own command")

context.configure(
    connection=brought["connection"],
    version_table="alembic_version",
    version_table_schema=brought["schema"],
    transaction_per_migration=True,
)
with context.begin_transaction():
    context.run_migrations()
