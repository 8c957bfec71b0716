SELECT number, state, run_id, suspects FROM generation
