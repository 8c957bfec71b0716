SELECT DISTINCT partner FROM outcome_offset
