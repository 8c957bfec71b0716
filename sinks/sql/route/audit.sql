INSERT INTO audit (who, action, target, detail)
VALUES (%(who)s, 'unroutable route', 'events', jsonb_build_object('routed', %(routed)s::bigint, 'still', %(still)s::bigint))
