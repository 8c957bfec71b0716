-- In the same transaction as the outcomes: what is recorded and how far it is recorded can't part.
UPDATE outcome_offset AS o
SET last = read.last, counted = o.counted + read.counted, updated_at = now()
FROM unnest(%(partners)s::text[], %(generations)s::integer[], %(befores)s::text[], %(lasts)s::text[],
            %(counts)s::bigint[]) AS read (partner, generation, before, last, counted)
WHERE o.partner = read.partner AND o.generation = read.generation AND o.last = read.before
