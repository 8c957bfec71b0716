-- A night's query takes as long as it takes, and its texts must not depend on the server's defaults.
SET statement_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET datestyle = 'ISO, YMD';
SET timezone = 'UTC';
SET intervalstyle = 'iso_8601';
SET bytea_output = 'hex';
SET extra_float_digits = 1;
SET standard_conforming_strings = on
