-- Rows of machines outlive the sandboxes and VMs that are deleted: whoever asks for warm machines, or for those that are
-- there, reads no others.

CREATE INDEX machines_warm ON machines (host_id, id) WHERE owner_kind = 'warm';
CREATE INDEX machines_living ON machines (id) WHERE deleted_at IS NULL;
