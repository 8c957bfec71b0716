-- What routing decided, for events that are locked or were written in this transaction. `fed` is the generation in
-- which the router hands a delivery to Redis after the commit, null where sweep does.
WITH fresh AS (
    INSERT INTO delivery (event, partner, fed_generation, due_at, updated_at)
    SELECT event, partner, fed, due_at, now()
    FROM unnest(%(events)s::bigint[], %(partners)s::text[], %(feds)s::integer[], %(due_ats)s::timestamptz[])
        AS new (event, partner, fed, due_at)
    ORDER BY event, partner
    ON CONFLICT DO NOTHING
    RETURNING event, partner
),
shaped AS (
    INSERT INTO reshaped (event, partner, target_uri, body)
    SELECT event, partner, target_uri, body
    FROM unnest(%(shaped_events)s::bigint[], %(shaped_partners)s::text[], %(target_uris)s::text[],
                %(bodies)b::bytea[]) AS shape (event, partner, target_uri, body)
    JOIN fresh USING (event, partner)
),
routed AS (
    DELETE FROM unrouted WHERE event = ANY (%(routed)s::bigint[])
),
unroutable AS (
    INSERT INTO unrouted (event, reason)
    SELECT event, reason FROM unnest(%(unroutable)s::bigint[], %(reasons)s::text[]) AS failed (event, reason)
    ON CONFLICT (event) DO UPDATE SET reason = excluded.reason
)
SELECT event, partner FROM fresh
