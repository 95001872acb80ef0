-- GPUs of sandboxes: how many each has, and of which model. Sandboxes from before have none.

ALTER TABLE sandboxes ADD COLUMN gpu_config_count INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sandboxes ADD COLUMN gpu_model TEXT;
