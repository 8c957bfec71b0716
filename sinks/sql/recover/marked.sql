UPDATE generation SET suspects = %(suspects)s, changed_at = now()
