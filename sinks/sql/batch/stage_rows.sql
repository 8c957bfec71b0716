COPY batch_stage (event_id, partner, amount, currency, order_key, body) FROM STDIN
