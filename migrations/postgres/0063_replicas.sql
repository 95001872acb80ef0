-- Several services may share a database, each a replica with a host of its own; one of them is active. Who keeps the
-- database counts its terms, and shows that it lives by a number that grows.

ALTER TABLE keeper ADD COLUMN term BIGINT NOT NULL DEFAULT 0;
ALTER TABLE keeper ADD COLUMN beat BIGINT NOT NULL DEFAULT 0;
ALTER TABLE keeper ADD COLUMN address TEXT;
ALTER TABLE hosts ADD COLUMN service TEXT CHECK (service IN ('active', 'standby'));
