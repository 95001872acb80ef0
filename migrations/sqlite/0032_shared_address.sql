-- VMs may share an address of their host: a machine has the address at which it is reached there beside its own one.

ALTER TABLE machines ADD COLUMN shared_address TEXT;
