-- Before anything is fenced, so that a crash leaves a higher number and the losses that were seen.
UPDATE generation SET number = %(number)s, state = 'recovering', suspects = %(suspects)s, changed_at = now()
