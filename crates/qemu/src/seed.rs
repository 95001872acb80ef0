//! The seed: a small ISO image, labelled `cidata`, that tells a guest who it is (cloud-init's NoCloud).
//!
//! Its files have rigid forms, because the small guests read them with awk rather than with a parser.
//! Keys stand in `meta-data`, so that `user-data` stays word for word what the owner gave.

use std::fmt;
use std::fs::File;
use std::io::{Cursor, Read};
use std::path::Path;

use berth_process::folder;
use hadris_iso::read::PathSeparator;
use hadris_iso::rrip::RripOptions;
use hadris_iso::write::options::{CreationFeatures, IsoFormatOptions};
use hadris_iso::write::{InputEntry, InputTree, IsoImageWriter};
use uuid::Uuid;

use crate::error::at;
use crate::host_key::HostKey;
use crate::{Error, Result};

/// Nothing to say to cloud-init.
const EMPTY: &str = "#cloud-config\n{}\n";
/// Room of the image beside the files: descriptors, directories, one sector of padding for each file.
const OVERHEAD: usize = 512 * 1024;

/// Bytes of a seed that a waiting machine looks at. It knows the disk's size from its start, so every machine that begins
/// with its memory has one of that size.
const WAITED_FOR: u64 = 4 << 20;
/// Random bytes that such a machine gets: in hexadecimal they fill, behind its id, most of the first sector.
const RANDOM: usize = 236;

/// A network card's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// A stable address for an id, in the range QEMU uses.
    pub fn of(id: Uuid) -> Self {
        let bytes = id.as_bytes();
        Self([0x52, 0x54, 0x00, bytes[13], bytes[14], bytes[15]])
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// A file system that the guest mounts on every boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The disk's serial: `/dev/disk/by-id/virtio-<serial>`.
    pub serial: String,
    /// Where: a folder right below `/mnt`.
    pub path: String,
}

/// What a guest is told.
#[derive(Clone, Debug)]
pub struct Seed {
    /// A new one makes the guest take a new identity.
    pub instance_id: Uuid,
    /// Its host name.
    pub hostname: String,
    /// Keys of the login user.
    pub ssh_keys: Vec<String>,
    /// What the owner gives to cloud-init.
    pub user_data: Option<String>,
    /// What the platform gives to cloud-init.
    pub vendor_data: Option<String>,
    /// Its network card.
    pub mac: Mac,
    /// File systems to mount.
    pub mounts: Vec<Mount>,
}

impl Seed {
    /// The files of the seed.
    fn files(&self) -> [(&'static str, String); 5] {
        let name = |mount: &Mount| mount.path.trim_start_matches("/mnt/").to_owned();
        let mounts = self.mounts.iter().map(|m| format!("{} {}\n", m.serial, name(m))).collect();
        [
            ("meta-data", self.meta_data()),
            ("user-data", self.user_data.clone().unwrap_or_else(|| EMPTY.into())),
            ("vendor-data", self.vendor_data.clone().unwrap_or_else(|| EMPTY.into())),
            ("network-config", self.network_config()),
            ("mounts", mounts),
        ]
    }

    fn meta_data(&self) -> String {
        let mut text = format!("instance-id: {}\nlocal-hostname: {}\n", self.instance_id, self.hostname);
        if !self.ssh_keys.is_empty() {
            text.push_str("public-keys:\n");
        }
        for key in &self.ssh_keys {
            text.push_str(&format!("  - {}\n", scalar(key)));
        }
        text
    }

    fn network_config(&self) -> String {
        format!(
            "version: 2\nethernets:\n  net0:\n    match:\n      macaddress: \"{}\"\n    dhcp4: true\n    dhcp6: false\n",
            self.mac
        )
    }

    /// Writes the seed as an image.
    pub fn write(&self, dst: &Path) -> Result<()> {
        folder::write(dst, &image(self.files().into())?).map_err(at("cannot write", dst))
    }

    /// Writes the seed of a machine that begins with the memory of one that waited for its owner: here it is, with random
    /// bytes that no other machine gets, and a host key.
    pub fn write_for_waiting(&self, dst: &Path) -> Result<()> {
        let key = HostKey::generate(&format!("root@{}", self.hostname))?;
        let mut files = Vec::from(self.files());
        files.extend([("host-key", key.private), ("host-key.pub", key.public)]);
        let mut image = image(files)?;
        let size = usize::try_from(WAITED_FOR).unwrap_or(usize::MAX);
        if image.len() > size {
            return Err(Error::Invalid(format!("the seed has more than {WAITED_FOR} bytes")));
        }
        image.resize(size, 0);
        let mut random = [0; RANDOM];
        let pool = Path::new("/dev/urandom");
        File::open(pool).and_then(|mut pool| pool.read_exact(&mut random)).map_err(at("cannot read", pool))?;
        let hex: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        let words = format!("{} {hex}\n", self.instance_id);
        image[..words.len()].copy_from_slice(words.as_bytes());
        folder::write(dst, &image).map_err(at("cannot write", dst))
    }
}

fn image(files: Vec<(&'static str, String)>) -> Result<Vec<u8>> {
    let size = OVERHEAD + files.iter().map(|(_, text)| text.len()).sum::<usize>();
    let entries = files.into_iter().map(|(name, text)| InputEntry::file(name, text.into_bytes())).collect();
    let tree = InputTree::new(PathSeparator::ForwardSlash, entries);
    let image = IsoImageWriter::create(Cursor::new(vec![0; size]), tree, options())
        .map_err(|e| Error::Invalid(format!("the seed cannot be made: {e}")))?;
    Ok(image.into_inner())
}

/// Writes the seed of a machine that belongs to nobody: it waits.
pub fn write_template(dst: &Path) -> Result<()> {
    folder::write(dst, b"template\n").map_err(at("cannot write", dst))?;
    let file = File::options().write(true).open(dst).map_err(at("cannot open", dst))?;
    file.set_len(WAITED_FOR).map_err(at("cannot size", dst))
}

fn options() -> IsoFormatOptions {
    IsoFormatOptions {
        volume_name: "cidata".into(),
        system_id: None,
        volume_set_id: None,
        publisher_id: None,
        preparer_id: None,
        application_id: None,
        sector_size: 2048,
        path_separator: PathSeparator::ForwardSlash,
        strict_charset: false,
        features: CreationFeatures { rock_ridge: Some(RripOptions::default()), ..CreationFeatures::rock_ridge() },
    }
}

/// A YAML scalar: plain where that is safe, because the small guests read it plain, else quoted.
fn scalar(text: &str) -> String {
    let risky =
        text.contains(": ") || text.contains(" #") || text.contains(['"', '\'', '\t']) || text.ends_with([':', ' ']);
    if risky { serde_json::Value::from(text).to_string() } else { text.to_owned() }
}

/// What a foreign cloud image needs to do what our own images do by themselves: mount data disks on
/// every boot, and say that the boot has finished. A transient unit does, because reading every unit of the
/// system again costs an emulated processor seconds.
pub fn generic_vendor_data() -> String {
    const BOOTHOOK: &str = r#"#cloud-boothook
#!/bin/sh
seed=$(mktemp -d) || exit 0
mount -o ro -L cidata "$seed" || exit 0
cp "$seed/mounts" /run/berth-mounts
umount "$seed"
while read -r serial name; do
  mkdir -p "/mnt/$name"
  mountpoint -q "/mnt/$name" || mount "/dev/disk/by-id/virtio-$serial" "/mnt/$name"
  resize2fs "/dev/disk/by-id/virtio-$serial" || true
done </run/berth-mounts
systemd-run --quiet --no-block --unit=berth-ready -p Type=oneshot -p "After=cloud-final.service multi-user.target" \
  /bin/sh -c 'echo "berth ready $(cat /var/lib/cloud/data/instance-id)" >/dev/ttyS1'
"#;
    format!(
        "MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=\"berth\"\n\n--berth\n\
         Content-Type: text/cloud-boothook; charset=\"us-ascii\"\n\n{BOOTHOOK}\n--berth--\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seed() -> Seed {
        Seed {
            instance_id: Uuid::nil(),
            hostname: "web".into(),
            ssh_keys: vec!["ssh-ed25519 AAAA me@host".into(), "ssh-rsa BBBB a: b # c \"d\"".into()],
            user_data: None,
            vendor_data: None,
            mac: Mac([0x52, 0x54, 0, 1, 2, 0xff]),
            mounts: vec![Mount { serial: "0123456789abcdef0123".into(), path: "/mnt/data".into() }],
        }
    }

    #[test]
    fn files_have_their_rigid_form() {
        let [(_, meta), (_, user), _, (_, network), (_, mounts)] = seed().files();
        assert_eq!(
            meta,
            "instance-id: 00000000-0000-0000-0000-000000000000\nlocal-hostname: web\npublic-keys:\n  \
             - ssh-ed25519 AAAA me@host\n  - \"ssh-rsa BBBB a: b # c \\\"d\\\"\"\n"
        );
        assert_eq!(user, "#cloud-config\n{}\n");
        assert!(network.contains("macaddress: \"52:54:00:01:02:ff\""));
        assert_eq!(mounts, "0123456789abcdef0123 data\n");
    }

    #[test]
    fn a_waiting_machine_is_told_whose_it_is_in_a_seed_of_its_size() {
        let dir = tempfile::tempdir().unwrap();
        let [template, one, two, big] = ["template", "one", "two", "big"].map(|name| dir.path().join(name));
        write_template(&template).unwrap();
        seed().write_for_waiting(&one).unwrap();
        seed().write_for_waiting(&two).unwrap();
        let [template, one, two] = [template, one, two].map(|path| std::fs::read(path).unwrap());
        assert!(template.starts_with(b"template\n") && template.len() == one.len() && one.len() == two.len());
        assert!(one.starts_with(b"00000000-0000-0000-0000-000000000000 ") && one[..512].contains(&b'\n'));
        assert_eq!(&one[16 * 2048 + 40..16 * 2048 + 46], b"cidata");
        assert_ne!(one[..512], two[..512], "both begin with the same random bytes");
        let key = |seed: &[u8]| {
            let begin = seed.windows(15).position(|w| w == b"-----BEGIN OPEN").unwrap();
            seed[begin..begin + 400].to_vec()
        };
        assert_ne!(key(&one), key(&two), "both have the same host key");
        let more = Seed { user_data: Some("x".repeat(usize::try_from(WAITED_FOR).unwrap())), ..seed() };
        assert!(more.write_for_waiting(&big).is_err() && !big.exists());
    }

    #[test]
    fn the_image_has_the_label_and_the_names() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("seed.iso");
        let big = Seed { user_data: Some("x".repeat(64 * 1024)), ..seed() };
        big.write(&path).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(&bytes[16 * 2048 + 40..16 * 2048 + 46], b"cidata");
        for name in ["meta-data", "user-data", "vendor-data", "network-config", "mounts"] {
            assert!(bytes.windows(name.len()).any(|w| w == name.as_bytes()), "{name}");
        }
    }
}
