//! The routes: parse, authorize, call ops, view. A file holds the handlers of one noun.

mod admin;
mod backup;
mod backup_schedule;
mod catalog;
mod console;
mod disk;
mod disk_import;
mod disk_snapshot;
mod export;
mod firewall;
mod image;
mod metrics;
mod project_image;
mod relay;
mod screen;
mod vm;

use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Vms;

/// Every route of the service.
pub fn routes() -> OpenApiRouter<Vms> {
    OpenApiRouter::new()
        .routes(routes!(vm::list_vms, vm::create_vm))
        .routes(routes!(vm::get_vm, vm::update_vm, vm::delete_vm))
        .routes(routes!(vm::start_vm))
        .routes(routes!(vm::stop_vm))
        .routes(routes!(vm::restart_vm))
        .routes(routes!(vm::suspend_vm))
        .routes(routes!(vm::resume_vm))
        .routes(routes!(vm::replace_vm_ssh_keys))
        .routes(routes!(vm::resize_vm))
        .routes(routes!(vm::reinstall_vm))
        .routes(routes!(vm::rescue_vm))
        .routes(routes!(vm::wait_vm))
        .routes(routes!(vm::list_vm_operations))
        .routes(routes!(firewall::get_vm_rules, firewall::set_vm_rules))
        .routes(routes!(metrics::get_vm_metrics))
        .routes(routes!(console::get_vm_console))
        .routes(routes!(console::connect_vm_console))
        .routes(routes!(screen::get_vm_screen))
        .routes(routes!(screen::connect_vm_screen))
        .routes(routes!(disk::list_root_disk_volumes))
        .routes(routes!(disk::get_root_disk_volume, disk::delete_root_disk_volume))
        .routes(routes!(disk::resize_root_disk_volume))
        .routes(routes!(disk::list_disks, disk::create_disk))
        .routes(routes!(disk_import::import_disk))
        .routes(routes!(disk::get_disk, disk::delete_disk))
        .routes(routes!(disk::attach_disk))
        .routes(routes!(disk::detach_disk))
        .routes(routes!(disk::resize_disk))
        .routes(routes!(disk_snapshot::list_disk_snapshots, disk_snapshot::create_disk_snapshot))
        .routes(routes!(disk_snapshot::get_disk_snapshot, disk_snapshot::delete_disk_snapshot))
        .routes(routes!(backup::list_backups, backup::create_backup))
        .routes(routes!(backup::get_backup, backup::delete_backup))
        .routes(routes!(backup::restore_backup))
        .routes(routes!(backup_schedule::list_backup_schedules, backup_schedule::create_backup_schedule))
        .routes(routes!(
            backup_schedule::get_backup_schedule,
            backup_schedule::update_backup_schedule,
            backup_schedule::delete_backup_schedule
        ))
        .routes(routes!(export::export_disk))
        .routes(routes!(export::export_root_disk_volume))
        .routes(routes!(export::export_disk_snapshot))
        .routes(routes!(export::export_project_image))
        .routes(routes!(project_image::list_project_images, project_image::create_project_image))
        .routes(routes!(project_image::get_project_image, project_image::delete_project_image))
        .routes(routes!(admin::list_all_vms))
        .routes(routes!(admin::stop_any_vm))
        .routes(routes!(admin::delete_any_vm))
        .routes(routes!(catalog::list_regions))
        .routes(routes!(catalog::list_vm_configs))
        .routes(routes!(catalog::list_plans))
        .routes(routes!(image::list_images, image::import_image))
        .routes(routes!(image::get_image, image::delete_image))
        .routes(routes!(image::upload_image))
}
