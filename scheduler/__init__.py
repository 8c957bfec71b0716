"""When a job runs: its calendar, the business dates that are due, and who claims the run.

In reading order: `calendar` (business days and changes of the clocks; pure), `due` (what is owed; pure),
`jobs` (a job and its schedule), `fire` (claims a run in the ledger and keeps it), `service` (wakes; the
only file that knows APScheduler).
"""
