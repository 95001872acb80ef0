-- Deaths were counted as attempts once; since 0015 attempts are deadlines that passed. What is left of the former would
-- have the first deadline that passes end a machine.

UPDATE vms SET deaths = attempts WHERE deaths = 0;
UPDATE vms SET attempts = 0;

-- What strangers cause is bounded by its number: the newest are found, and the oldest removed, without reading the rest.
CREATE INDEX audit_refusals ON audit (created_at)
WHERE action IN ('user.login_failed', 'user.locked_out', 'api_key.refused', 'refusals.more');
