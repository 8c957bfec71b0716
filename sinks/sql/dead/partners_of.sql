SELECT event, partner FROM chosen WHERE event = ANY (%(events)s) AND left_out IS NULL ORDER BY 1, 2
