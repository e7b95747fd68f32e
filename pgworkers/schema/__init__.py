"""The migrations: numbered `.sql` files, applied in order, one transaction each, by `postgres/migrate.py`.

Written for the schema name `pgworkers`; the loader puts the configured name in its place. What is applied is
recorded with a checksum in the table `migration`.
"""
