INSERT INTO audit (who, action, target, why, detail)
VALUES (%(who)s, %(action)s, %(target)s, %(why)s, %(detail)s)
RETURNING id
