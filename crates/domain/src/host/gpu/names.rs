//! What a GPU is called.
//!
//! A small table has those of data centers, so that they are called the same on every host. Others are called as the
//! host's list of PCI ids says (`pci.ids`), the newest of which few hosts have, and by their number where nobody knows
//! them. The id of a model is its name in lower case with everything between letters and digits made one hyphen, and
//! its maker before it: `nvidia-h100-sxm5-80gb`.

/// The longest id of a model: a size of machines is asked for by it.
const LONGEST: usize = 40;

/// Makers, by their numbers.
const MAKERS: [(u16, &str); 3] = [(NVIDIA, "NVIDIA"), (AMD, "AMD"), (INTEL, "Intel")];
pub(super) const NVIDIA: u16 = 0x10de;
pub(super) const AMD: u16 = 0x1002;
const INTEL: u16 = 0x8086;

/// Models of data centers (the PCI ID Repository, pci-ids.ucw.cz, without the name of the chip).
const MODELS: [(u16, u16, &str); 31] = [
    (NVIDIA, 0x1db1, "Tesla V100 SXM2 16GB"),
    (NVIDIA, 0x1db4, "Tesla V100 PCIe 16GB"),
    (NVIDIA, 0x1db5, "Tesla V100 SXM2 32GB"),
    (NVIDIA, 0x1db6, "Tesla V100 PCIe 32GB"),
    (NVIDIA, 0x1eb8, "Tesla T4"),
    (NVIDIA, 0x20b0, "A100 SXM4 40GB"),
    (NVIDIA, 0x20b2, "A100 SXM4 80GB"),
    (NVIDIA, 0x20b5, "A100 PCIe 80GB"),
    (NVIDIA, 0x20b7, "A30 PCIe"),
    (NVIDIA, 0x20f1, "A100 PCIe 40GB"),
    (NVIDIA, 0x2235, "A40"),
    (NVIDIA, 0x2236, "A10"),
    (NVIDIA, 0x2321, "H100 NVL"),
    (NVIDIA, 0x2330, "H100 SXM5 80GB"),
    (NVIDIA, 0x2331, "H100 PCIe"),
    (NVIDIA, 0x2335, "H200 SXM 141GB"),
    (NVIDIA, 0x26b5, "L40"),
    (NVIDIA, 0x26b9, "L40S"),
    (NVIDIA, 0x27b8, "L4"),
    (NVIDIA, 0x2901, "B200"),
    (AMD, 0x738c, "Instinct MI100"),
    (AMD, 0x7408, "Instinct MI250X"),
    (AMD, 0x740c, "Instinct MI250"),
    (AMD, 0x740f, "Instinct MI210"),
    (AMD, 0x74a1, "Instinct MI300X"),
    (INTEL, 0x0bd5, "Data Center GPU Max 1550"),
    (INTEL, 0x0bd6, "Data Center GPU Max 1550"),
    (INTEL, 0x0bd9, "Data Center GPU Max 1100"),
    (INTEL, 0x0bda, "Data Center GPU Max 1100"),
    (INTEL, 0x56c0, "Data Center GPU Flex 170"),
    (INTEL, 0x56c1, "Data Center GPU Flex 140"),
];

/// The id and the name of a model, by the numbers of maker and model and the host's list of PCI ids, which may be empty.
pub fn named(vendor: u16, device: u16, list: &str) -> (String, String) {
    let maker = MAKERS.iter().find(|known| known.0 == vendor).map(|known| known.1);
    let known = MODELS.iter().find(|known| (known.0, known.1) == (vendor, device)).map(|known| known.2.to_owned());
    let name = match (maker, known.or_else(|| listed(vendor, device, list))) {
        (Some(maker), Some(model)) => format!("{maker} {model}"),
        (None, Some(model)) => model,
        (Some(maker), None) => format!("{maker} {device:04x}"),
        (None, None) => format!("GPU {vendor:04x} {device:04x}"),
    };
    (id_of(&name), name)
}

/// The id and the name of a virtual function, by the name of its model and how many functions its GPU is divided into.
pub(super) fn one_of(name: &str, parts: u32) -> (String, String) {
    let end = format!("-1-{parts}");
    let id = cut(name, LONGEST - end.len());
    (id + &end, format!("{name} 1/{parts}"))
}

/// The id and the name of a kind of parts, by its maker's number and what its driver calls it.
pub(super) fn of_kind(vendor: u16, name: &str) -> (String, String) {
    let maker = MAKERS.iter().find(|known| known.0 == vendor).map(|known| known.1);
    let name = match maker.filter(|maker| !name.starts_with(maker)) {
        Some(maker) => format!("{maker} {name}"),
        None => name.to_owned(),
    };
    (id_of(&name), name)
}

fn id_of(name: &str) -> String {
    cut(name, LONGEST)
}

fn cut(name: &str, longest: usize) -> String {
    let mut id = String::new();
    for c in name.chars().flat_map(char::to_lowercase) {
        if c.is_ascii_alphanumeric() {
            id.push(c);
        } else if !id.is_empty() && !id.ends_with('-') {
            id.push('-');
        }
        if id.len() == longest {
            break;
        }
    }
    id.trim_end_matches('-').to_owned()
}

/// What the list says of a model: a line of the maker, and below it a line of each model, indented by one tab. The name
/// that people know stands in brackets behind the chip's.
fn listed(vendor: u16, device: u16, list: &str) -> Option<String> {
    let (maker, model) = (format!("{vendor:04x} "), format!("\t{device:04x} "));
    let mut below = list.lines().skip_while(|line| !line.starts_with(&maker)).skip(1);
    let line = below
        .by_ref()
        .take_while(|line| line.is_empty() || line.starts_with(['\t', '#']))
        .find_map(|line| line.strip_prefix(&model))?;
    let inner = line.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map_or(line, |(inner, _)| inner);
    Some(inner.trim().to_owned()).filter(|name| name.chars().any(|c| c.is_ascii_alphanumeric()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "# pci.ids\n10de  NVIDIA Corporation\n\t1eb8  TU104GL [another name]\n\
        \t2684  AD102 [GeForce RTX 4090]\n\t\t10de 16f1  a card\n\t9999  []\n1ed5  Moore\n\t0200  MTT S2000\n\t2bad  x\n";

    #[test]
    fn a_model_is_called_by_the_table_then_by_the_list_then_by_its_number() {
        for (vendor, device, id, name) in [
            (NVIDIA, 0x2330, "nvidia-h100-sxm5-80gb", "NVIDIA H100 SXM5 80GB"),
            (NVIDIA, 0x1eb8, "nvidia-tesla-t4", "NVIDIA Tesla T4"),
            (NVIDIA, 0x2684, "nvidia-geforce-rtx-4090", "NVIDIA GeForce RTX 4090"),
            (NVIDIA, 0x9999, "nvidia-9999", "NVIDIA 9999"),
            (NVIDIA, 0x2bad, "nvidia-2bad", "NVIDIA 2bad"),
            (0x1ed5, 0x0200, "mtt-s2000", "MTT S2000"),
            (0x1ed5, 0x0201, "gpu-1ed5-0201", "GPU 1ed5 0201"),
        ] {
            assert_eq!(named(vendor, device, LIST), (id.to_owned(), name.to_owned()));
        }
        assert_eq!(named(AMD, 0x74a1, "").0, "amd-instinct-mi300x");
    }

    #[test]
    fn a_part_is_called_after_what_it_is_a_part_of() {
        let named = |(id, name): (String, String), expected: (&str, &str)| assert_eq!((&*id, &*name), expected);
        named(of_kind(NVIDIA, "NVIDIA A100-1-5C"), ("nvidia-a100-1-5c", "NVIDIA A100-1-5C"));
        named(of_kind(NVIDIA, "GRID T4-2B4"), ("nvidia-grid-t4-2b4", "NVIDIA GRID T4-2B4"));
        named(of_kind(INTEL, "GVTg_V5_4"), ("intel-gvtg-v5-4", "Intel GVTg_V5_4"));
        named(of_kind(0x1ed5, "X 1"), ("x-1", "X 1"));
        named(one_of("AMD Instinct MI210", 4), ("amd-instinct-mi210-1-4", "AMD Instinct MI210 1/4"));
        assert_eq!(one_of(&"a".repeat(LONGEST), 16).0, format!("{}-1-16", "a".repeat(LONGEST - 5)));
    }

    #[test]
    fn an_id_is_a_label_that_is_not_too_long() {
        assert_eq!(id_of("AMD Radeon (R9) 290X/390X"), "amd-radeon-r9-290x-390x");
        assert_eq!(id_of(&"a".repeat(LONGEST)), "a".repeat(LONGEST));
        assert_eq!(id_of(&"a".repeat(LONGEST + 1)), "a".repeat(LONGEST));
        assert_eq!(id_of(&format!("{} b", "a".repeat(LONGEST - 1))), "a".repeat(LONGEST - 1));
        let mut ids: Vec<_> = MODELS.iter().map(|(_, device, _)| device).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), MODELS.len(), "each model stands in the table once");
    }
}
