-- Back to pending as rows of the new batch, numbered in the order in which they came in; attempts and age count anew.
UPDATE delivery AS d
SET status = 'pending', cause = NULL, due_at = NULL, fed_generation = NULL, last_error = NULL, unknowns = 0,
    batch_id = %(batch)s, row_number = numbered.row_number, attempts_before = d.attempts, replayed_at = now(),
    possible_duplicate = numbered.arrived, updated_at = now()
FROM (
    SELECT event, partner, arrived, row_number() OVER (PARTITION BY partner ORDER BY event) AS row_number
    FROM chosen
    WHERE left_out IS NULL
) AS numbered
WHERE d.event = numbered.event AND d.partner = numbered.partner AND d.status = ANY (%(may_replay)s::delivery_status[])
