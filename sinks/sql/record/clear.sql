DELETE FROM outcome_stage
