-- Every batch of one business date with its manifest: one row for each partner and currency, one row with
-- NULLs for a batch that has none. `superseded`: a later revision of the same job and date exists.
-- A replay is not one of them: what it sends is in the manifest of the batch that loaded it.
-- The manifest's hash again, over the events; not where some were known before, nor beyond what a text holds.
WITH ids AS (
    SELECT
        h.id AS batch_id,
        encode(sha256(convert_to(coalesce(string_agg(e.event_id || chr(10), '' ORDER BY e.id), ''), 'UTF8')), 'hex')
            AS sha256
    FROM batch AS h
    LEFT JOIN event AS e ON e.batch_id = h.id
    WHERE h.business_date = %(business_date)s
        AND h.state IN ('released', 'held')
        AND h.ids_sha256 IS NOT NULL
        AND h.already_known = 0
        AND h.loaded_count <= 5000000
    GROUP BY h.id
)
SELECT
    b.id,
    b.job,
    b.revision,
    b.state::text,
    EXISTS (
        SELECT FROM batch AS later
        WHERE later.job = b.job AND later.business_date = b.business_date AND later.revision > b.revision
    ) AS superseded,
    coalesce(b.expected_count, 0) AS batch_expected_count,
    coalesce(b.loaded_count, 0) AS batch_loaded_count,
    coalesce(b.already_known, 0) AS already_known,
    coalesce(b.ids_sha256, '') AS ids_sha256,
    coalesce(i.sha256, '') AS found_ids_sha256,
    b.snapshot_at,
    b.released_at,
    coalesce(b.failure::text, '') AS failure,
    t.partner,
    t.currency,
    coalesce(t.expected_count, 0) AS expected_count,
    coalesce(t.expected_minor, 0) AS expected_minor,
    coalesce(t.known_count, 0) AS known_count,
    coalesce(t.known_minor, 0) AS known_minor,
    coalesce(t.loaded_count, 0) AS loaded_count,
    coalesce(t.loaded_minor, 0) AS loaded_minor
FROM batch AS b
LEFT JOIN batch_total AS t ON t.batch_id = b.id
LEFT JOIN ids AS i ON i.batch_id = b.id
WHERE b.business_date = %(business_date)s AND b.job <> 'replay'
ORDER BY b.job, b.revision, b.id, t.partner, t.currency;
