-- The accounting department's own table; Madeira only reads it.
CREATE TABLE payment_orders (
    order_id   integer PRIMARY KEY,
    account_id integer NOT NULL,
    bank_to    text NOT NULL,
    account_to text NOT NULL,
    amount     numeric(12, 2) NOT NULL,
    k_symbol   text NOT NULL
)
