COPY outcome_stage FROM STDIN (FORMAT binary)
