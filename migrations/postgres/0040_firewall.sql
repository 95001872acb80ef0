-- Firewall rules of networks and of VMs, in their order. A VM's running machine was told the applied ones.

ALTER TABLE networks ADD COLUMN rules TEXT NOT NULL DEFAULT '[]';     -- JSON
ALTER TABLE vms ADD COLUMN rules TEXT NOT NULL DEFAULT '[]';          -- JSON
ALTER TABLE vms ADD COLUMN applied_rules TEXT NOT NULL DEFAULT '[]';  -- JSON
