COPY delivery (event, partner, batch_id, row_number, updated_at) FROM STDIN
