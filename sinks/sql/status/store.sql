SELECT generation.number, generation.state, now() AS now,
       (SELECT count(*) FROM worker WHERE ended_at IS NULL AND heartbeat_at > now() - interval '15 s') AS workers,
       (SELECT count(*) FROM worker WHERE ended_at IS NULL AND heartbeat_at <= now() - interval '15 s') AS silent,
       (SELECT count(*) FROM outcome_quarantine) AS quarantined
FROM generation
