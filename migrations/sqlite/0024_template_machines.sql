-- A template's machines take memory of the host while they build it or boot it once. A build that an earlier version has
-- under way begins anew.

ALTER TABLE sandbox_templates ADD COLUMN machines INTEGER NOT NULL DEFAULT 0;

UPDATE sandbox_templates SET machines = 1 WHERE slot IS NOT NULL;
