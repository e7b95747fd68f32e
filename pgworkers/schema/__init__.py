"""The numbered migrations: the whole storage of pgworkers as SQL.

`postgres/migrate.py` applies them in order, each in one transaction, and writes down what it applied. A file that was
released is never edited again: its checksum is in every database that has seen it. The files are written for the schema
`pgworkers` and rendered for the configured one; they use no extension and nothing newer than Postgres 13.
"""
