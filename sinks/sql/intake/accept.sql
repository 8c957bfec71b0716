-- Events that came in together and are not known yet, each with its place in the router's list; answers which.
WITH written AS (
--include part/insert_events
    RETURNING id, source, event_id
),
waiting AS (
    INSERT INTO unrouted (event) SELECT id FROM written
)
SELECT source, event_id FROM written
