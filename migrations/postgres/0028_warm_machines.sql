-- Warm machines: those that began with a template's memory before anybody asked, and that nobody owns yet.

ALTER TABLE machines ADD COLUMN layer_id TEXT REFERENCES sandbox_layers (id); -- the top of the disk of one that nobody owns
ALTER TABLE machines ADD COLUMN ready BIGINT NOT NULL DEFAULT 0;              -- somebody may have it

CREATE INDEX machines_on_layer ON machines (layer_id) WHERE layer_id IS NOT NULL;
