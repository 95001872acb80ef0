-- GPUs: what each host has of them, and which functions of its devices a machine has for itself. A function is one
-- machine's or nobody's.

ALTER TABLE hosts ADD COLUMN gpus TEXT NOT NULL DEFAULT '[]'; -- JSON

CREATE TABLE machine_gpus (
    host_id    TEXT NOT NULL REFERENCES hosts (id),
    address    TEXT NOT NULL,               -- of the function, on the buses of its host
    machine_id TEXT NOT NULL REFERENCES machines (id),
    PRIMARY KEY (host_id, address)
);
CREATE INDEX machine_gpus_of_machine ON machine_gpus (machine_id);
