-- Layers and captured memories of sandboxes lie on a host.

ALTER TABLE sandbox_layers ADD COLUMN host_id TEXT REFERENCES hosts (id);
ALTER TABLE sandbox_memories ADD COLUMN host_id TEXT REFERENCES hosts (id);
CREATE INDEX sandbox_layers_of_hosts ON sandbox_layers (host_id);
CREATE INDEX sandbox_memories_of_hosts ON sandbox_memories (host_id);
