"""What moves, and in which order: from the source's rows to the partner's answer, the record, the report.

In reading order:

- a batch: `job`, `source` (one snapshot of accounting), `manifest` and `gate` (does it add up; pure),
  `lease` (who runs it), `load` (the quick way in), `stage` (the careful one), `batch` (all of it, released
  whole or not at all)
- a live event: `live_source` (who may post), `intake` (accepted once), `whereabouts` (where it is),
  `reshape` (another body out of the same JSON; pure), `route` (which partners; pure), `deliveries` (what the
  record has of it), `router` (all of it: shards → record → lanes)
- on its way: `feed` (PostgreSQL → lanes), `dispatch` (slots → sends → settle), `attempt` (an answer → what
  is settled), `takeover` (what a dead worker left), `record` (outcomes → PostgreSQL)
- when Redis was lost: `recover`
- what operators want: `control` (pauses), `dead_letters` (what came to nothing, and what somebody found out),
  `replay`, `cancel`, `export` (to a file)
- the morning: `balance` (do the books agree; pure), `report` (files), `reconcile`
"""
