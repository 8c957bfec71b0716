-- Handed to Redis, and not in what it kept: a power cut takes the last second from its file, not from PostgreSQL.
UPDATE delivery SET possible_duplicate = true, updated_at = now()
WHERE partner = %(partner)s AND batch_id = %(batch)s AND row_number IN (
    SELECT row_number FROM delivery
    WHERE partner = %(partner)s AND batch_id = %(batch)s AND status = 'pending'
      AND row_number > %(kept)s AND row_number <= %(upto)s
    ORDER BY row_number
    LIMIT %(limit)s
)
