-- Where a batch's rows wait until all of them are checked; gone with the transaction.
-- The id is the event's, given in the order of the query.
CREATE TEMPORARY TABLE batch_stage (
    event_id  text,
    partner   text,
    amount    numeric,
    currency  text,
    order_key text,
    body      text,
    id        bigint NOT NULL DEFAULT nextval('event_id_seq')
) ON COMMIT DROP
