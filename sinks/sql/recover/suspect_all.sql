-- PostgreSQL was restored from an older copy: nobody can say of any open delivery whether it was sent since.
UPDATE delivery SET possible_duplicate = true, updated_at = now()
WHERE partner = %(partner)s AND status IN ('pending', 'retrying') AND NOT possible_duplicate
