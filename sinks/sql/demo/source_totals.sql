-- What accounting wants paid, per bank; amounts in hundredths.
SELECT bank_to, count(*) AS count, (sum(amount) * 100)::bigint AS minor
FROM payment_orders
GROUP BY bank_to
