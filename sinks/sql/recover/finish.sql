UPDATE generation SET state = 'open', run_id = %(run_id)s, suspects = '', changed_at = now()
