"""Start here: the only package that knows the others. Commands, settings, wiring, and the loops.

In reading order:

- commands: `cli` (arguments and exit codes), `running` (what goes on until it is asked to leave), `commands`,
  `morning`, `status`, `trace`, `unroutable` (and conflicts), `dead_cli` and
  `dead` (what came to nothing), `check`, `send` (an event, as its sender would), `show`
  and `reconciliation` (what people see)
- settings: `settings` (environment and jobs.toml), `configuration` (jobs.toml → frozen values), `tables`
  (its keys), `values`, `live` (those of sources and routes), `routes` (what needs several tables), `mistakes`
  (all at once, with place and fix), `reload` (a changed jobs.toml taken while everything runs)
- running: `wiring` (which servers), `worker` (all services of one process), `roster` (its partners), `runtime` (the
  only loops), `supervisor` (several processes), `address` (to listen at), `probes` (what a worker tells over HTTP),
  `metrics`, `backlog` (what waits, for them), `exit` (leaving for certain), `logs`
- events over HTTP: `serving` (one process that takes them), `api` (every request), `inlet` (headers, signature,
  body), `door` (a source as it is let in, its rate), `format` (an event, or all its mistakes), `answers` (what is
  said about an event or a line), `problem` (refusals), `listener` (the socket)
- private servers: `embedded`, `embedded_server`, `embedded_valkey`, `embedded_postgres`
- one night to look at: `demo`, `demo_stage`, `demo_shop`, `demo_view`, `demo_count`, `banks` (thirteen
  partners over HTTP), `bank_ledger` (what they know)
"""
