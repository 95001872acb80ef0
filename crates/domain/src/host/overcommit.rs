//! A host's memory, which VMs and sandboxes share though each kind counts it in its own way.
//!
//! An operator says for each kind how often a MiB of the host is promised to it (`memory_overcommit`). What one kind
//! holds, divided by its own factor, is what the host has to find; times the other's, it is what the other cannot have.

/// How many MiB are promised of so many, with a factor.
pub fn offered_mb(memory_mb: i64, factor: f64) -> i64 {
    #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "MiB of a host are few")]
    let offered = (memory_mb as f64 * factor) as i64;
    offered
}

/// How many MiB of a kind with the factor `own` cannot be had because another kind, with the factor `others`, holds so
/// many. Rounded up: the host never promises a part of a MiB twice.
pub fn withheld_mb(held_mb: i64, others: f64, own: f64) -> i64 {
    if held_mb <= 0 {
        return 0;
    }
    #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "MiB of a host are few")]
    let withheld = (held_mb as f64 / others * own).ceil() as i64;
    withheld
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn one_kinds_mib_is_the_others_by_their_factors() {
        // 4 GiB of sandboxes that are promised four times are 1 GiB of VMs that are promised once, and the reverse.
        assert_eq!(withheld_mb(4096, 4.0, 1.0), 1024);
        assert_eq!(withheld_mb(1024, 1.0, 4.0), 4096);
        assert_eq!(withheld_mb(1, 4.0, 1.0), 1, "a part of a MiB is one");
        assert_eq!(withheld_mb(0, 4.0, 1.0), 0);
    }

    proptest! {
        /// However the two kinds take turns, the host never has to find more than it has, but for roundings.
        #[test]
        fn the_host_is_never_promised_twice(
            host in 1_i64..1_000_000,
            (vm, sandbox) in (0.5_f64..8.0, 0.5_f64..8.0),
            asks in prop::collection::vec((any::<bool>(), 1_i64..100_000), 0..40),
        ) {
            let (mut vms, mut sandboxes) = (0, 0);
            for (is_vm, size) in asks {
                let (held, own, other, others) =
                    if is_vm { (&mut vms, vm, sandboxes, sandbox) } else { (&mut sandboxes, sandbox, vms, vm) };
                if *held + size <= offered_mb(host, own) - withheld_mb(other, others, own) {
                    *held += size;
                }
            }
            #[expect(clippy::cast_precision_loss, reason = "MiB of a host are few")]
            let found = vms as f64 / vm + sandboxes as f64 / sandbox;
            #[expect(clippy::cast_precision_loss, reason = "MiB of a host are few")]
            let has = host as f64;
            prop_assert!(found <= has + 1e-6 * has, "{found} of {has}");
        }
    }
}
