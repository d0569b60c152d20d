-- Short links, most of which live for a while only; one without expires_at stays.
CREATE TABLE public.short_link (
  code        text PRIMARY KEY,
  target      text NOT NULL,
  owner       text NOT NULL DEFAULT '',
  created_at  timestamptz NOT NULL DEFAULT now(),
  expires_at  timestamptz
);

-- What the sweep walks. On a table in use: CREATE INDEX CONCURRENTLY.
CREATE INDEX short_link_over ON public.short_link (expires_at, code);
