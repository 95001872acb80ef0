-- A layer of sandboxes that nobody writes to any more may lie on other hosts than its own, too, to which it was brought.

CREATE TABLE sandbox_layer_copies (
    id       TEXT PRIMARY KEY,
    layer_id TEXT NOT NULL REFERENCES sandbox_layers (id),
    host_id  TEXT NOT NULL REFERENCES hosts (id),
    state    TEXT NOT NULL CHECK (state IN ('coming', 'present', 'failed')),
    message  TEXT,                            -- why it failed
    since    BIGINT NOT NULL,                 -- of its state
    work_at  BIGINT,                          -- when to bring it
    UNIQUE (layer_id, host_id)
);
CREATE INDEX sandbox_layer_copies_of_hosts ON sandbox_layer_copies (host_id);
CREATE INDEX sandbox_layer_copies_with_work ON sandbox_layer_copies (work_at) WHERE work_at IS NOT NULL;
