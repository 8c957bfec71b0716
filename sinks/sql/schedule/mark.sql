SELECT next_date FROM schedule_mark WHERE job = %(job)s
