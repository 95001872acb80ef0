-- A sandbox leaves its host, which is drained: where it goes, since when, and whether it is to run there.

ALTER TABLE sandboxes ADD COLUMN to_host_id TEXT REFERENCES hosts (id);
ALTER TABLE sandboxes ADD COLUMN to_since BIGINT;
ALTER TABLE sandboxes ADD COLUMN to_resumes BIGINT NOT NULL DEFAULT 0;
CREATE INDEX sandboxes_to_hosts ON sandboxes (to_host_id) WHERE to_host_id IS NOT NULL;
-- A memory goes there, too, or came from there: another host than its own may have it, or some of it.
ALTER TABLE sandbox_memories ADD COLUMN other_host_id TEXT REFERENCES hosts (id);
