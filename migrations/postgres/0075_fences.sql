-- A host that is lost is shut out of a store of disks, so that what it had there starts elsewhere: from where it reached each
-- store last, which stores it is shut out of, and the machines that it still has to end once it answers again.

ALTER TABLE hosts ADD COLUMN store_addresses TEXT NOT NULL DEFAULT '{}';
ALTER TABLE hosts ADD COLUMN fences TEXT NOT NULL DEFAULT '{}';
CREATE TABLE released_machines (
    host_id TEXT NOT NULL,
    machine_id TEXT NOT NULL,
    store TEXT NOT NULL,
    generation BIGINT NOT NULL,
    PRIMARY KEY (host_id, machine_id)
);
