-- Drained to the end and the streams deleted: only the newest generation's offset is still needed.
DELETE FROM outcome_offset WHERE generation < %(generation)s
