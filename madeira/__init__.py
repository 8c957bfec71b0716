"""Start here: the only package that knows the others.

Reading order: ``settings`` (environment and jobs.toml), ``wiring`` (opens and closes everything), ``runtime``
(the only loops), ``embedded`` (private Valkey and PostgreSQL), ``cli``, ``demo``.
"""
