-- On the lock's own session, which fails where the lock was lost.
SELECT count(*) FROM generation WHERE number = %(number)s AND state = 'recovering'
