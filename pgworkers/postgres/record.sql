-- A migration was applied, in the same transaction.
INSERT INTO pgworkers.migration (version, name, checksum) VALUES (%(version)s, %(name)s, %(checksum)s)
