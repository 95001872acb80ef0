//! Which GPUs a machine gets.

use std::collections::{BTreeMap, BTreeSet};

use uuid::Uuid;

use super::{Device, Gpu, Kind, Part, PciAddress};

/// GPUs that can only be handed out together.
#[derive(Clone)]
struct Unit {
    /// How many of the model that is asked for.
    gpus: usize,
    numa_node: Option<u32>,
    functions: Vec<PciAddress>,
}

/// So many GPUs of a model for one machine; none where there are not as many.
///
/// Of whole ones: whole groups are handed out, and none of which a function is held by another machine or of which a GPU is
/// unavailable. As few GPUs are wasted as can be; then those of one node of the host are taken if it has enough, then
/// fewest groups, then the first of the buses. Of parts: those of GPUs that have the least room left, so that others stay
/// free for other kinds; each that is to have a UUID gets a `fresh` one.
pub fn choose(
    gpus: &[Gpu],
    held: &BTreeSet<Device>,
    model: &str,
    count: usize,
    fresh: impl FnMut() -> Uuid,
) -> Option<Vec<Device>> {
    let whole = wholes(gpus, held, model, count);
    let whole = whole.map(|functions| functions.into_iter().map(Device::Function).collect());
    whole.or_else(|| parts(gpus, held, model, count, fresh))
}

/// What a host lacks for so many GPUs of a model, as a sentence.
pub fn shortage(gpus: &[Gpu], held: &BTreeSet<Device>, model: &str, count: usize) -> String {
    let whole: usize = units(gpus, held, model).iter().map(|unit| unit.gpus).sum();
    let free = whole + rooms(gpus, held, model).iter().map(|room| room.most).sum::<usize>();
    format!("this region has {free} free GPUs of the model {model}, and {count} would be needed")
}

/// Where a GPU has room for parts of a kind.
struct Room<'a> {
    kind: &'a Kind,
    /// How many more there may be of it.
    most: usize,
    /// A function for each, as often as it has room.
    places: Vec<PciAddress>,
}

/// Where there is room for parts of a model, the least first.
fn rooms<'a>(gpus: &'a [Gpu], held: &BTreeSet<Device>, model: &str) -> Vec<Room<'a>> {
    let of_gpu = |gpu: &'a Gpu| Some(room(gpu, gpu.kinds.iter().find(|kind| kind.is_a(model))?, held));
    let mut rooms: Vec<_> = gpus.iter().filter_map(of_gpu).filter(|room| room.most > 0).collect();
    rooms.sort_by_key(|room| room.most);
    rooms
}

/// What was promised but is not made yet takes room as if it were.
fn room<'a>(gpu: &Gpu, kind: &'a Kind, held: &BTreeSet<Device>) -> Room<'a> {
    let promised: Vec<&Part> = held.iter().filter_map(Device::part).filter(|part| !gpu.parts.contains(part)).collect();
    let waiting = |at: PciAddress| promised.iter().filter(|part| part.at == at).count();
    let number = |count: u32| usize::try_from(count).unwrap_or(usize::MAX);
    let mut places = Vec::new();
    for place in &kind.places {
        let free = number(place.free.min(kind.most)).saturating_sub(waiting(place.at));
        places.extend(std::iter::repeat_n(place.at, free));
    }
    let made = gpu.parts.iter().filter(|part| part.kind == kind.id).count();
    let elsewhere = promised.iter().filter(|part| kind.places.iter().any(|place| place.at == part.at)).count();
    let most = number(kind.most).saturating_sub(made + elsewhere).min(places.len());
    Room { kind, most, places }
}

fn parts(
    gpus: &[Gpu],
    held: &BTreeSet<Device>,
    model: &str,
    count: usize,
    mut fresh: impl FnMut() -> Uuid,
) -> Option<Vec<Device>> {
    let mut parts: Vec<Device> = Vec::new();
    for room in rooms(gpus, held, model) {
        for at in room.places.iter().take(room.most.min(count - parts.len())) {
            let uuid = room.kind.is_mediated.then(&mut fresh);
            parts.push(Device::Part(Part { at: *at, kind: room.kind.id.clone(), uuid }));
        }
    }
    (parts.len() == count).then_some(parts)
}

/// The functions of so many whole GPUs, in the order of the buses.
fn wholes(gpus: &[Gpu], held: &BTreeSet<Device>, model: &str, count: usize) -> Option<Vec<PciAddress>> {
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

/// What can be handed out and is free, in the order of the buses.
fn units(gpus: &[Gpu], held: &BTreeSet<Device>, model: &str) -> Vec<Unit> {
    let mut groups: BTreeMap<u32, Vec<&Gpu>> = BTreeMap::new();
    for gpu in gpus {
        if let Some(group) = gpu.group {
            groups.entry(group).or_default().push(gpu);
        }
    }
    let taken: BTreeSet<_> = held.iter().filter_map(Device::function).collect();
    let is_free = |gpu: &Gpu| gpu.unavailable.is_none() && gpu.functions.iter().all(|f| !taken.contains(f));
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
