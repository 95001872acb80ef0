//! Which GPUs a machine gets.

use std::collections::{BTreeMap, BTreeSet};

use super::{Gpu, PciAddress};

/// GPUs that can only be handed out together.
#[derive(Clone)]
struct Unit {
    /// How many of the model that is asked for.
    gpus: usize,
    numa_node: Option<u32>,
    functions: Vec<PciAddress>,
}

/// The functions of so many GPUs of a model for one machine, in the order of the buses; none where there are not as many.
///
/// Whole groups are handed out, and none of which a function is held by another machine or of which a GPU is unavailable.
/// As few GPUs are wasted as can be; then those of one node of the host are taken if it has enough, then fewest groups,
/// then the first of the buses.
pub fn choose(gpus: &[Gpu], held: &BTreeSet<PciAddress>, model: &str, count: usize) -> Option<Vec<PciAddress>> {
    let units = units(gpus, held, model);
    let nodes: BTreeSet<_> = units.iter().filter_map(|unit| unit.numa_node).collect();
    let near = nodes.into_iter().filter_map(|node| {
        let of_node: Vec<_> = units.iter().filter(|unit| unit.numa_node == Some(node)).cloned().collect();
        pick(&of_node, count).map(|(surplus, picked)| (surplus, false, picked))
    });
    let anywhere = pick(&units, count).map(|(surplus, picked)| (surplus, true, picked));
    let best = near.chain(anywhere).min_by_key(|(surplus, spread, picked)| (*surplus, *spread, picked.len()))?;
    let mut functions: Vec<_> = best.2.into_iter().flat_map(|unit| unit.functions).collect();
    functions.sort_unstable();
    Some(functions)
}

/// What a host lacks for so many GPUs of a model, as a sentence.
pub fn shortage(gpus: &[Gpu], held: &BTreeSet<PciAddress>, model: &str, count: usize) -> String {
    let free: usize = units(gpus, held, model).iter().map(|unit| unit.gpus).sum();
    format!("this region has {free} free GPUs of the model {model}, and {count} would be needed")
}

/// What can be handed out and is free, in the order of the buses.
fn units(gpus: &[Gpu], held: &BTreeSet<PciAddress>, model: &str) -> Vec<Unit> {
    let mut groups: BTreeMap<u32, Vec<&Gpu>> = BTreeMap::new();
    for gpu in gpus {
        if let Some(group) = gpu.group {
            groups.entry(group).or_default().push(gpu);
        }
    }
    let is_free = |gpu: &Gpu| gpu.unavailable.is_none() && gpu.functions.iter().all(|f| !held.contains(f));
    let unit = |members: Vec<&Gpu>| {
        let wanted: Vec<_> = members.iter().filter(|gpu| gpu.is_a(model)).collect();
        let first = wanted.first().filter(|_| members.iter().all(|gpu| is_free(gpu)))?;
        let functions = first.functions.clone();
        Some(Unit { gpus: wanted.len(), numa_node: first.numa_node, functions })
    };
    let mut units: Vec<_> = groups.into_values().filter_map(unit).collect();
    units.sort_by_key(|unit| unit.functions.first().copied());
    units
}

/// Units with at least so many GPUs: the surplus, and which, fewest first.
fn pick(units: &[Unit], count: usize) -> Option<(usize, Vec<Unit>)> {
    let largest = units.iter().map(|unit| unit.gpus).max()?;
    // For each number of GPUs, the fewest units that have exactly as many.
    let mut exactly: Vec<Option<Vec<&Unit>>> = vec![None; count + largest];
    exactly[0] = Some(Vec::new());
    for unit in units {
        for sum in (unit.gpus..exactly.len()).rev() {
            let Some(before) = exactly[sum - unit.gpus].as_ref() else { continue };
            if exactly[sum].as_ref().is_none_or(|known| before.len() + 1 < known.len()) {
                exactly[sum] = Some(before.iter().copied().chain([unit]).collect());
            }
        }
    }
    let found = exactly.into_iter().enumerate().skip(count).find_map(|(sum, picked)| Some((sum - count, picked?)));
    found.map(|(surplus, picked)| (surplus, picked.into_iter().cloned().collect()))
}
