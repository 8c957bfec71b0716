-- The standing orders that are paid on a business date. The order of rows is the order in which a bank receives them.
SELECT order_id,
       account_id,
       bank_to,
       account_to,
       amount,
       k_symbol,
       :business_date AS business_date
FROM payment_orders
ORDER BY order_id
