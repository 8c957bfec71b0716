"""How an event leaves and what is written down: the partner, the request, its answer, the record's schema and SQL.

In reading order:

- leaving: `partner` (who, how fast), `signature` (pure), `address` (where nobody may connect to),
  `connector` (connections, and how much of an answer is parsed at once), `webhook` (one attempt)
- the answer: `answer` (what came, as values), `classify` (what it means; pure)
- the record: `statement` (loads `sql/`), `pool` (connections), `event_rows` (live events on their way in),
  `journal` (outcomes as rows, and what they change), `snapshot` (one moment of it), `migrate` (runs `migrations/`),
  `report_run` (which reports were published)
"""
