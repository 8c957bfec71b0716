-- Rows of batches that Redis cannot have: a feeder notes how far it goes before it hands over, and reads a
-- chunk at once. Asked after the cancellation was committed; so Redis is told of what it may have, and not of a whole night.
UPDATE cancelled
SET told = true
FROM (
    SELECT c.event, c.partner, row_number() OVER (PARTITION BY bp.batch_id, bp.partner ORDER BY d.row_number) AS place
    FROM cancelled AS c
    JOIN delivery AS d ON d.event = c.event AND d.partner = c.partner
    JOIN batch_partner AS bp ON bp.batch_id = d.batch_id AND bp.partner = d.partner
    WHERE c.audit = %(audit)s AND NOT c.told AND d.attempts = d.attempts_before AND d.row_number > bp.fed_upto
) AS beyond
WHERE beyond.place > %(chunk)s AND cancelled.event = beyond.event AND cancelled.partner = beyond.partner
