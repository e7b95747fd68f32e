"""The migrations: numbered `.sql` files, which `postgres/migrate.py` applies in order, each in one transaction.

They are written for the schema name `pgworkers`; the loader puts the configured name in its place. The table `migration`
records what was applied, with a checksum. `roles.sql` is not a migration: `pgworkers migrate roles` prints it.

The first line of a file is `-- serves: NNNN`. Code whose newest migration is NNNN, and all later code, works on the schema
after this file. A file that only adds may name an older number than its own:

- new tables, indexes and functions; new columns that have a default or may be NULL;
- CREATE OR REPLACE FUNCTION with the same arguments and the same meaning. One more argument would make a second function,
  and the calls of older code would become ambiguous.

Everything else (DROP, RENAME, another type, NOT NULL or CHECK on columns that older code writes, another meaning of a
value) serves only its own number. Removing something without stopping all hosts takes two versions: the first no longer
uses it; the second drops it and names the first.
"""
