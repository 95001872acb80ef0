-- What a layer takes on the host, in bytes, once nobody writes to it any more: a project is charged for it.
ALTER TABLE sandbox_layers ADD COLUMN bytes BIGINT NOT NULL DEFAULT 0;
