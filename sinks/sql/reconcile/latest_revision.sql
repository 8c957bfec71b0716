-- The highest revision that was ever published for a business date, 0 for none.
SELECT coalesce(max(revision), 0) FROM report_run WHERE business_date = %(business_date)s;
