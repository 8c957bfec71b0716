-- Partners of whose live deliveries some wait here for longer than sweep needs: newer ones wait behind them.
SELECT name
FROM unnest(%(partners)s::text[]) AS partner (name)
WHERE EXISTS (
    SELECT FROM delivery AS d
    WHERE d.partner = partner.name AND d.batch_id IS NULL AND d.fed_generation IS NULL
      AND d.due_at < %(before)s AND d.status = 'pending'
)
