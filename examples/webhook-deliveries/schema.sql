-- A log of webhooks that were sent out, one row a delivery. What is finished is kept for a while, then it may go.
CREATE TABLE public.webhook_delivery (
  delivery_id      uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  endpoint_url     text NOT NULL,
  event            text NOT NULL,
  body             text NOT NULL,
  status           text NOT NULL DEFAULT 'pending'
                   CONSTRAINT webhook_delivery_status
                   CHECK (status IN ('pending', 'retrying', 'delivered', 'abandoned')),
  attempts         integer NOT NULL DEFAULT 0,
  last_code        integer,
  -- When it is to be tried (again). Also set where somebody asked for a delivered or abandoned one once more.
  next_attempt_at  timestamptz DEFAULT now(),
  created_at       timestamptz NOT NULL DEFAULT now(),
  expires_at       timestamptz NOT NULL DEFAULT now() + interval '30 days',
  legal_hold       boolean NOT NULL DEFAULT false
);

-- What the sender asks for.
CREATE INDEX webhook_delivery_due ON public.webhook_delivery (next_attempt_at) WHERE next_attempt_at IS NOT NULL;

-- What the sweep walks. On a table in use: CREATE INDEX CONCURRENTLY.
CREATE INDEX webhook_delivery_over ON public.webhook_delivery (expires_at, delivery_id);
