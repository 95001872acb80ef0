-- A host may be drained: its VMs leave it, those that are off, or all. A VM leaves its host when it is put onto another one.

ALTER TABLE hosts ADD COLUMN drain TEXT CHECK (drain IN ('off', 'all'));
ALTER TABLE vms ADD COLUMN leaves BIGINT NOT NULL DEFAULT 0;
