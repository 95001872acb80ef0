-- A layer or memory of sandboxes may lie in the store of backups, too: which store may have something of it, and, once that has all
-- of it, what its host calls it, how many bytes it has and what they hash to.

ALTER TABLE sandbox_layers ADD COLUMN archive_store TEXT;
ALTER TABLE sandbox_layers ADD COLUMN archive_name TEXT;
ALTER TABLE sandbox_layers ADD COLUMN archive_bytes BIGINT;
ALTER TABLE sandbox_layers ADD COLUMN archive_sha256 TEXT;
CREATE INDEX sandbox_layers_archived ON sandbox_layers (archive_store) WHERE archive_store IS NOT NULL;
ALTER TABLE sandbox_memories ADD COLUMN archive_store TEXT;
ALTER TABLE sandbox_memories ADD COLUMN archive_name TEXT;
ALTER TABLE sandbox_memories ADD COLUMN archive_bytes BIGINT;
ALTER TABLE sandbox_memories ADD COLUMN archive_sha256 TEXT;
CREATE INDEX sandbox_memories_archived ON sandbox_memories (archive_store) WHERE archive_store IS NOT NULL;
