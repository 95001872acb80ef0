-- A host may be asked over the network: it joined by a token that held once. What was removed stays as long as machines that
-- have ended name it.

ALTER TABLE hosts ADD COLUMN joined BIGINT NOT NULL DEFAULT 0;    -- asked over the network; else a service is there
ALTER TABLE hosts ADD COLUMN enrolment BIGINT NOT NULL DEFAULT 0; -- how often it joined; its certificate says so, too
ALTER TABLE hosts ADD COLUMN token_hash TEXT;                     -- SHA-256 of the token that it may join with, hexadecimal
ALTER TABLE hosts ADD COLUMN token_until BIGINT;
ALTER TABLE hosts ADD COLUMN certificate_until BIGINT;
ALTER TABLE hosts ADD COLUMN version TEXT;                        -- of Berth there
ALTER TABLE hosts ADD COLUMN trouble TEXT;                        -- why it cannot be asked
ALTER TABLE hosts ADD COLUMN removed_at BIGINT;
