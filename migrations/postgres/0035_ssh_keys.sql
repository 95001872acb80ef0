-- SSH keys that people and projects store, to choose them by name for VMs. A VM has copies of those it was made with.

CREATE TABLE ssh_keys (
    id         TEXT PRIMARY KEY,
    owner_kind TEXT NOT NULL CHECK (owner_kind IN ('user', 'project')),
    owner_id   TEXT NOT NULL,
    name       TEXT NOT NULL,
    public_key TEXT NOT NULL,
    bare_key   TEXT NOT NULL,               -- without its comment: what tells whether two are the same
    created_at BIGINT NOT NULL
);
CREATE UNIQUE INDEX ssh_keys_by_name ON ssh_keys (owner_id, owner_kind, name);
CREATE UNIQUE INDEX ssh_keys_by_key ON ssh_keys (owner_id, owner_kind, bare_key);
CREATE INDEX ssh_keys_of_owner ON ssh_keys (owner_id, owner_kind, created_at DESC, id DESC);
