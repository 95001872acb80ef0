-- A layer or memory of sandboxes may lie in the store of backups, too: which store has all of it, what its host calls it, how many
-- bytes it has and what they hash to, and whether something of that was missing or wrong when it was looked for. Another store, or the
-- same one once more, may have something of it that is on its way there.

ALTER TABLE sandbox_layers ADD COLUMN archive_store TEXT;
ALTER TABLE sandbox_layers ADD COLUMN archive_name TEXT;
ALTER TABLE sandbox_layers ADD COLUMN archive_bytes BIGINT;
ALTER TABLE sandbox_layers ADD COLUMN archive_sha256 TEXT;
ALTER TABLE sandbox_layers ADD COLUMN archive_doubted BIGINT NOT NULL DEFAULT 0;
ALTER TABLE sandbox_layers ADD COLUMN archive_next TEXT;
CREATE INDEX sandbox_layers_archived ON sandbox_layers (archive_store) WHERE archive_store IS NOT NULL;
ALTER TABLE sandbox_memories ADD COLUMN archive_store TEXT;
ALTER TABLE sandbox_memories ADD COLUMN archive_name TEXT;
ALTER TABLE sandbox_memories ADD COLUMN archive_bytes BIGINT;
ALTER TABLE sandbox_memories ADD COLUMN archive_sha256 TEXT;
ALTER TABLE sandbox_memories ADD COLUMN archive_doubted BIGINT NOT NULL DEFAULT 0;
ALTER TABLE sandbox_memories ADD COLUMN archive_next TEXT;
CREATE INDEX sandbox_memories_archived ON sandbox_memories (archive_store) WHERE archive_store IS NOT NULL;
