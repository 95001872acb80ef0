-- A change of a running machine's ports may end half way; then the machine's ports are set anew, whatever the row says.

ALTER TABLE vms ADD COLUMN ports_pending BIGINT NOT NULL DEFAULT 0;
