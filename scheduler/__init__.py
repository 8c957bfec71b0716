"""When a job runs: its calendar, the business dates that are due, and who claims the run."""
