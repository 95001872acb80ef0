-- Parts of GPUs: what a machine has, as text. A row without it has the function that its address names.

ALTER TABLE machine_gpus ADD COLUMN device TEXT;
