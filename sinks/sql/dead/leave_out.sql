-- What a replay does not touch, and why: in the words that the operator reads.
UPDATE chosen
SET left_out = CASE
    WHEN NOT chosen.partner = ANY (%(partners)s) THEN %(no_partner)s
    WHEN EXISTS (SELECT FROM cancelled AS c
                 WHERE c.event = chosen.event AND c.partner = chosen.partner AND NOT c.told) THEN %(cancelling)s
    WHEN arrived AND chosen.partner = ANY (%(confirm_first)s) THEN %(confirm)s
    WHEN arrived AND live AND %(current_route)s THEN %(may_have)s
END
