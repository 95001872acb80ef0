-- What administrators of the platform say of a host stands apart from what its service finds. Events that name hosts are
-- for them alone.

ALTER TABLE hosts ADD COLUMN cordoned BIGINT NOT NULL DEFAULT 0;
ALTER TABLE hosts ADD COLUMN given_name TEXT;
ALTER TABLE events ADD COLUMN for_administrators BIGINT NOT NULL DEFAULT 0;
