-- Messages are counted by recipient, and one that waits takes in later ones; what ended can be found and removed.

ALTER TABLE outbox ADD COLUMN recipient_key TEXT;      -- the recipient in lower case
ALTER TABLE outbox ADD COLUMN begun_at BIGINT;         -- since when it is being sent
CREATE INDEX outbox_of_recipient ON outbox (recipient_key, kind);
CREATE INDEX outbox_by_end ON outbox (settled_at);
CREATE INDEX one_time_tokens_by_end ON one_time_tokens (expires_at);
CREATE INDEX refresh_tokens_by_end ON refresh_tokens (expires_at);
CREATE INDEX sessions_by_end ON sessions (expires_at);
CREATE INDEX sessions_by_revocation ON sessions (revoked_at);

-- Counts the wrong codes of whom there is none for, so that they take as long as others.
INSERT INTO one_time_tokens (id, purpose, subject, recipient, tries, created_at, expires_at)
VALUES ('nobody', 'nobody', 'nobody', '', 0, 0, 9223372036854775807);
