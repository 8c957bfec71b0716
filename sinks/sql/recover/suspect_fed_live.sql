-- As suspect_fed, for live deliveries: a negative generation says that one was perhaps handed over in it.
UPDATE delivery SET possible_duplicate = true, updated_at = now()
WHERE partner = %(partner)s AND batch_id IS NULL AND due_at IS NOT NULL
  AND (status = 'pending' AND abs(fed_generation) >= %(since)s
       OR status = 'retrying' AND due_at <= now())
