INSERT INTO reshaped (event, partner, target_uri, body)
SELECT event, partner, target_uri, body
FROM unnest(%(events)s::bigint[], %(partners)s::text[], %(target_uris)s::text[], %(bodies)s::bytea[])
    AS made (event, partner, target_uri, body)
ON CONFLICT (event, partner) DO UPDATE SET target_uri = excluded.target_uri, body = excluded.body
