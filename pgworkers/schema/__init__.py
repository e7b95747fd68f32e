"""The migrations: numbered `.sql` files, applied in order, one transaction each, by `postgres/migrate.py`.

Written for the schema name `pgworkers`; the loader puts the configured name in its place. What is applied is
recorded with a checksum in the table `migration`.

The first line of a file is `-- serves: NNNN`: code whose newest migration is NNNN, and all later code, works on the schema
after this file. A file that only adds may name an older number than its own:

- new tables, indexes and functions; new columns that have a default or may be NULL;
- CREATE OR REPLACE FUNCTION with the same arguments and the same meaning. An argument more makes a second function, and the
  calls of older code become ambiguous.

Everything else (DROP, RENAME, another type, NOT NULL or CHECK on columns that older code writes, another meaning of a
value) serves only its own number. To remove something without a stop of all hosts takes two versions: the first no longer
uses it, the second drops it and names the first.
"""
