-- Rows as a service of schema 7 left them, on either database. The test writes the person, whose password is hashed.

INSERT INTO users (id,email,email_key,password_hash,is_admin,created_at,updated_at)
VALUES ('00000000-0000-0000-0000-000000000001','Boss@example.com','boss@example.com','x',1,1780000000000000,1780000000000000);
INSERT INTO orgs (id,name,slug,created_at,updated_at)
VALUES ('00000000-0000-0000-0000-000000000002','Berth','o',1780000000000000,1780000000000000);
INSERT INTO org_members (org_id,user_id,role,created_at)
VALUES ('00000000-0000-0000-0000-000000000002','00000000-0000-0000-0000-000000000001','owner',1780000000000000);
INSERT INTO projects (id,org_id,name,slug,created_at,updated_at)
VALUES ('00000000-0000-0000-0000-000000000003','00000000-0000-0000-0000-000000000002','p','p',1780000000000000,1780000000000000);
INSERT INTO images (id,name,os,version,login_user,virtual_size,min_memory_mb,status,source,created_at,updated_at)
VALUES ('micro','micro','linux','1','root',1073741824,64,'failed','{"id":"micro"}',1780000000000000,1780000000000000);
INSERT INTO vms (id,org_id,project_id,name,region_id,vm_config_id,vcpu,memory_mb,gpu_config_count,plan_id,image_id,login_user,root_disk_id,root_disk_created,delete_root_disk,ssh_keys,exposed_ports,applied_ports,labels,restart_policy,want,status,status_since,attempts,reserved,address,ssh_port,boot,host_boot,work_at,created_at,updated_at,user_data)
VALUES ('00000000-0000-0000-0000-00000000000a','00000000-0000-0000-0000-000000000002','00000000-0000-0000-0000-000000000003','v10','local','tiny',1,512,0,'standard','micro','root','00000000-0000-0000-0000-00000000006e',1,1,'[]','[]','[]','{}','always','run','running',1779982000000000,3,1,'127.64.0.10',22,1,'x',1780000000000000,1780000000000000,1780000000000000,'secret');
INSERT INTO disks (id,org_id,project_id,kind,name,type,size_gb,region_id,image_id,status,vm_id,slot,created_at,updated_at)
VALUES ('00000000-0000-0000-0000-00000000006e','00000000-0000-0000-0000-000000000002','00000000-0000-0000-0000-000000000003','root','r','block',1,'local','micro','ready','00000000-0000-0000-0000-00000000000a',0,1780000000000000,1780000000000000);
INSERT INTO vms (id,org_id,project_id,name,region_id,vm_config_id,vcpu,memory_mb,gpu_config_count,plan_id,image_id,login_user,root_disk_id,root_disk_created,delete_root_disk,ssh_keys,exposed_ports,applied_ports,labels,restart_policy,want,status,status_since,attempts,reserved,address,ssh_port,boot,host_boot,work_at,created_at,updated_at,user_data)
VALUES ('00000000-0000-0000-0000-00000000000b','00000000-0000-0000-0000-000000000002','00000000-0000-0000-0000-000000000003','v11','local','tiny',1,512,0,'standard','micro','root','00000000-0000-0000-0000-00000000006f',1,1,'[]','[]','[]','{}','always','gone','deleting',1779982000000000,1,1,'127.64.0.11',22,1,'x',1780000000000000,1780000000000000,1780000000000000,'secret');
INSERT INTO disks (id,org_id,project_id,kind,name,type,size_gb,region_id,image_id,status,vm_id,slot,created_at,updated_at)
VALUES ('00000000-0000-0000-0000-00000000006f','00000000-0000-0000-0000-000000000002','00000000-0000-0000-0000-000000000003','root','r','block',1,'local','micro','ready','00000000-0000-0000-0000-00000000000b',0,1780000000000000,1780000000000000);
INSERT INTO vms (id,org_id,project_id,name,region_id,vm_config_id,vcpu,memory_mb,gpu_config_count,plan_id,image_id,login_user,root_disk_id,root_disk_created,delete_root_disk,ssh_keys,exposed_ports,applied_ports,labels,restart_policy,want,status,status_since,attempts,reserved,address,ssh_port,boot,host_boot,work_at,created_at,updated_at,user_data)
VALUES ('00000000-0000-0000-0000-00000000000c','00000000-0000-0000-0000-000000000002','00000000-0000-0000-0000-000000000003','v12','local','tiny',1,512,0,'standard','micro','root','00000000-0000-0000-0000-000000000070',1,1,'[]','[]','[]','{}','always','stop','stopping',1779982000000000,2,1,'127.64.0.12',22,1,'x',1780000000000000,1780000000000000,1780000000000000,'secret');
INSERT INTO disks (id,org_id,project_id,kind,name,type,size_gb,region_id,image_id,status,vm_id,slot,created_at,updated_at)
VALUES ('00000000-0000-0000-0000-000000000070','00000000-0000-0000-0000-000000000002','00000000-0000-0000-0000-000000000003','root','r','block',1,'local','micro','ready','00000000-0000-0000-0000-00000000000c',0,1780000000000000,1780000000000000);
INSERT INTO vms (id,org_id,project_id,name,region_id,vm_config_id,vcpu,memory_mb,gpu_config_count,plan_id,image_id,login_user,root_disk_id,root_disk_created,delete_root_disk,ssh_keys,exposed_ports,applied_ports,labels,restart_policy,want,status,status_since,attempts,reserved,address,ssh_port,boot,host_boot,work_at,created_at,updated_at,user_data)
VALUES ('00000000-0000-0000-0000-00000000000d','00000000-0000-0000-0000-000000000002','00000000-0000-0000-0000-000000000003','v13','local','tiny',1,512,0,'standard','micro','root','00000000-0000-0000-0000-000000000071',1,1,'[]','[]','[]','{}','always','run','starting',1779982000000000,2,1,'127.64.0.13',22,1,'x',1780000000000000,1780000000000000,1780000000000000,'secret');
INSERT INTO disks (id,org_id,project_id,kind,name,type,size_gb,region_id,image_id,status,vm_id,slot,created_at,updated_at)
VALUES ('00000000-0000-0000-0000-000000000071','00000000-0000-0000-0000-000000000002','00000000-0000-0000-0000-000000000003','root','r','block',1,'local','micro','ready','00000000-0000-0000-0000-00000000000d',0,1780000000000000,1780000000000000);
INSERT INTO vms (id,org_id,project_id,name,region_id,vm_config_id,vcpu,memory_mb,gpu_config_count,plan_id,image_id,login_user,root_disk_id,root_disk_created,delete_root_disk,ssh_keys,exposed_ports,applied_ports,labels,restart_policy,want,status,status_since,attempts,reserved,address,ssh_port,boot,host_boot,work_at,created_at,updated_at,user_data,deleted_at)
VALUES ('00000000-0000-0000-0000-00000000000e','00000000-0000-0000-0000-000000000002','00000000-0000-0000-0000-000000000003','v14','local','tiny',1,512,0,'standard','micro','root','00000000-0000-0000-0000-000000000072',1,1,'[]','[]','[]','{}','always','gone','deleted',1780000000000000,0,0,NULL,22,1,'x',NULL,1780000000000000,1780000000000000,'secret',1780000000000000);
INSERT INTO disks (id,org_id,project_id,kind,name,type,size_gb,region_id,image_id,status,vm_id,slot,created_at,updated_at)
VALUES ('00000000-0000-0000-0000-000000000072','00000000-0000-0000-0000-000000000002','00000000-0000-0000-0000-000000000003','root','r','block',1,'local','micro','ready','00000000-0000-0000-0000-00000000000e',0,1780000000000000,1780000000000000);
INSERT INTO sandbox_layers (id,org_id,project_id,frozen,state,created_at)
VALUES ('00000000-0000-0000-0000-000000000014','00000000-0000-0000-0000-000000000002','00000000-0000-0000-0000-000000000003',1,'present',1780000000000000);
INSERT INTO outbox (id,kind,recipient,attempts,work_at,created_at)
VALUES ('00000000-0000-0000-0000-00000000001e','verify_email','Boss@example.com',2,1780000000000000,1780000000000000);
