SELECT current_setting('server_version_num')::integer,
       current_setting('server_version'),
       current_setting('server_encoding'),
       pg_is_in_recovery(),
       current_setting('fsync'),
       current_setting('synchronous_commit')
