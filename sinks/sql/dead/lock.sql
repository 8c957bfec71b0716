-- One operator's action after the other: whoever comes second finds what the first left.
SELECT name FROM row_lock WHERE name = 'operator' FOR UPDATE
