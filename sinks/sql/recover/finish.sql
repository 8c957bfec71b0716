-- Only by the one whose number it is: who lost the lock meanwhile opens nothing.
UPDATE generation SET state = 'open', run_id = %(run_id)s, suspects = '', changed_at = now()
WHERE number = %(number)s
