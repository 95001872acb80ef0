-- API keys: where they may be used from and were used last; how long an organization lets them live; who made them.

ALTER TABLE api_keys ADD COLUMN networks TEXT;          -- CIDRs with commas between them; null is everywhere
ALTER TABLE api_keys ADD COLUMN last_used_address TEXT;
ALTER TABLE orgs ADD COLUMN max_key_seconds BIGINT;     -- null is without end
CREATE INDEX api_keys_of_maker ON api_keys (created_by);
CREATE INDEX invitations_of_sender ON invitations (invited_by);
