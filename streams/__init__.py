"""The event and its life in Redis: what it is, where it is, and one script for each move. Knows no database.

In reading order:

- the vocabulary: `envelope` (the event, byte for byte), `delivery` (states, `MOVES`, outcomes), `money`,
  `errors`
- where things are: `keys` (every key, nobody else spells one), `moves` (what goes into scripts and comes
  out)
- the moves: `scripts` (one typed method for each file in `lua/`), `pace` (slots and whose clock), `retry`
  (what follows an outcome; pure), `checkpoint` (failpoints)
- live events on their way in, before they have a partner: `inbound`
- looking on: `lanes`, `leases`, `marks`, `outcomes`, `gauges`
- the server: `transit` (the connection), `connection` (its errors as ours), `server` (what it says of
  itself)
"""
