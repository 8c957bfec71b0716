-- Whether this server takes writes.
SELECT current_setting('transaction_read_only') = 'off'
