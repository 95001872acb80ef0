//! The points at which tests kill the service, by what it was doing; every step of every plan is among them.

use berth_domain::sandbox::plan::StepKind;
use berth_domain::sandbox::template::TemplateStep;

pub const CREATION: &[&str] = &[
    "sandbox.enter.before",
    "sandbox.enter.after",
    "sandbox.reserve.before",
    "sandbox.reserve.done",
    "sandbox.reserve.after",
    "sandbox.make_disk.before",
    "sandbox.make_disk.intent",
    "sandbox.make_disk.done",
    "sandbox.make_disk.after",
    "sandbox.start.intent",
    "sandbox.start.launched",
    "sandbox.start.done",
    "sandbox.start.after",
];
pub const CHECKPOINT: &[&str] = &[
    "sandbox.checkpoint.before",
    "sandbox.checkpoint.intent",
    "sandbox.capture.frozen",
    "sandbox.capture.done",
    "sandbox.checkpoint.done",
    "sandbox.checkpoint.after",
];
pub const CHECKPOINT_COLD: &[&str] = &[
    "sandbox.checkpoint_cold.before",
    "sandbox.checkpoint_cold.intent",
    "sandbox.checkpoint_cold.done",
    "sandbox.checkpoint_cold.after",
];
pub const GIVEN_UP_CHECKPOINT: &[&str] = &["sandbox.give_up_checkpoint.before", "sandbox.give_up_checkpoint.after"];
pub const FORK: &[&str] = &[
    "sandbox.reserve.done",
    "sandbox.make_disk.intent",
    "sandbox.make_disk.done",
    "sandbox.start.before",
    "sandbox.start.intent",
    "sandbox.start.launched",
    "sandbox.start.done",
    "sandbox.start.after",
    "sandbox.checkpoint.done",
];
pub const PAUSE: &[&str] = &[
    "sandbox.pause.before",
    "sandbox.pause.intent",
    "sandbox.capture.frozen",
    "sandbox.capture.done",
    "sandbox.pause.captured",
    "sandbox.pause.done",
    "sandbox.pause.after",
];
pub const RESUMPTION: &[&str] = &[
    "sandbox.start.before",
    "sandbox.start.intent",
    "sandbox.start.launched",
    "sandbox.start.done",
    "sandbox.start.after",
    "sandbox.reserve.before",
    "sandbox.reserve.done",
];
pub const RESTORE: &[&str] = &["sandbox.end.before", "sandbox.end.after", "sandbox.swap.before", "sandbox.swap.after"];
pub const NETWORK: &[&str] = &["sandbox.set_network.before", "sandbox.set_network.done", "sandbox.set_network.after"];
pub const DELETION: &[&str] = &[
    "sandbox.end.before",
    "sandbox.end.after",
    "sandbox.finish.before",
    "sandbox.finish.done",
    "sandbox.finish.after",
    "layer.remove.before",
];
/// Of a snapshot, whose layer and memory nobody needs any more.
pub const REMOVAL: &[&str] =
    &["layer.remove.done", "layer.remove.after", "memory.remove.before", "memory.remove.done", "memory.remove.after"];
pub const UPLOAD: &[&str] = &["upload.remove.before", "upload.remove.done", "upload.remove.after"];
pub const EXPIRY: &[&str] = &["sandbox.expire.before", "sandbox.expire.after"];
pub const DEATH: &[&str] = &["sandbox.start_again.before", "sandbox.start_again.after"];
pub const RETRY: &[&str] = &["sandbox.retry.before", "sandbox.retry.after"];
pub const FAILURE: &[&str] = &["sandbox.fail.before", "sandbox.fail.after"];
/// Of the platform's template. What comes before a boot is at no price.
pub const TEMPLATE: &[&str] = &[
    "template.enter.before",
    "template.enter.after",
    "template.make_disk.before",
    "template.make_disk.intent",
    "template.make_disk.done",
    "template.make_disk.after",
    "template.warm.before",
    "template.warm.intent",
    "sandbox.capture.frozen",
    "sandbox.capture.done",
    "template.warm.done",
    "template.warm.after",
    "template.ready.before",
    "template.ready.after",
];
/// Of one that leaves its host.
pub const LEAVING: &[&str] = &[
    "sandbox.leave.before",
    "sandbox.leave.frozen",
    "memory.bring.intent",
    "memory.travel.expected",
    "memory.travel.taken",
    "memory.bring.done",
    "sandbox.leave.brought",
    "sandbox.leave.gone",
    "sandbox.leave.after",
];
pub const TEMPLATE_LATE: &[&str] = &["template.expire.before", "template.expire.after"];
pub const TEMPLATE_REMOVAL: &[&str] = &["template.remove.before", "template.remove.done", "template.remove.after"];

#[test]
fn every_step_of_every_plan_has_points_at_which_the_service_is_killed() {
    let lists = [
        &[
            CREATION,
            CHECKPOINT,
            CHECKPOINT_COLD,
            GIVEN_UP_CHECKPOINT,
            FORK,
            PAUSE,
            RESUMPTION,
            RESTORE,
            NETWORK,
            DELETION,
            REMOVAL,
        ][..],
        &[UPLOAD, EXPIRY, DEATH, RETRY, FAILURE, LEAVING, TEMPLATE, TEMPLATE_LATE, TEMPLATE_REMOVAL],
    ];
    let killed: Vec<_> = lists.into_iter().flatten().copied().flatten().copied().collect();
    let of_sandboxes = StepKind::ALL.iter().filter(|kind| kind.acts()).map(|kind| format!("sandbox.{kind}"));
    let of_templates = TemplateStep::ALL.iter().map(|step| format!("template.{step}"));
    let of_shared = ["layer", "memory", "upload"].map(|kind| format!("{kind}.remove"));
    for step in of_sandboxes.chain(of_templates).chain(of_shared) {
        for moment in ["before", "after"] {
            let point = format!("{step}.{moment}");
            assert!(killed.contains(&point.as_str()), "no test kills the service at {point}");
        }
    }
}
