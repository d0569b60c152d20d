-- What rolling keys needs: the rows that are sealed with a version, in the order in which they are sealed anew. It also
-- says which versions are in use at all, in as many steps as there are versions.
CREATE INDEX CONCURRENTLY IF NOT EXISTS push_subscription_reseal ON {schema}.push_subscription (auth_key_version, id)
  WHERE scrubbed_at IS NULL;
