SELECT generation.number, generation.state, now() AS now,
       (SELECT count(*) FROM worker WHERE ended_at IS NULL AND heartbeat_at > now() - interval '15 s') AS workers,
       (SELECT count(*) FROM worker WHERE ended_at IS NULL AND heartbeat_at <= now() - interval '15 s') AS silent,
       (SELECT count(*) FROM outcome_quarantine) AS quarantined,
       (SELECT count(*) FROM inbound_quarantine) AS inbound_quarantined,
       (SELECT count(*) FROM unrouted WHERE reason IS NOT NULL) AS unroutable,
       (SELECT min(since) FROM unrouted WHERE reason IS NULL) AS unrouted_since,
       (SELECT count(*) FROM conflict WHERE settled_at IS NULL) AS conflicts
FROM generation
