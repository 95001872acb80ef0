//! Which names a guest resolved to which address, for as long as it may believe them.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Shortest life, because programs connect some time after they asked.
const SHORTEST: Duration = Duration::from_secs(30);
/// Longest life, whatever an answer says.
const LONGEST: Duration = Duration::from_hours(24);

/// The memory, bounded in pairs of an address and a name.
pub(crate) struct Names {
    capacity: usize,
    count: usize,
    known: HashMap<IpAddr, Vec<(Arc<str>, Instant)>>,
}

impl Names {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { capacity, count: 0, known: HashMap::new() }
    }

    /// Remembers that a name led to an address; what would expire first gives way.
    pub(crate) fn remember(&mut self, address: IpAddr, name: &Arc<str>, ttl: Duration, now: Instant) {
        let until = now + ttl.clamp(SHORTEST, LONGEST);
        let known = self.known.get_mut(&address).and_then(|names| names.iter_mut().find(|(n, _)| n == name));
        if let Some((_, expiry)) = known {
            *expiry = until.max(*expiry);
            return;
        }
        self.make_room(now);
        if self.count < self.capacity {
            self.known.entry(address).or_default().push((Arc::clone(name), until));
            self.count += 1;
        }
    }

    /// The names that lead to an address now.
    pub(crate) fn of(&self, address: IpAddr, now: Instant) -> Vec<Arc<str>> {
        let names = self.known.get(&address).into_iter().flatten();
        names.filter(|(_, until)| *until > now).map(|(name, _)| Arc::clone(name)).collect()
    }

    fn make_room(&mut self, now: Instant) {
        if self.count < self.capacity {
            return;
        }
        self.forget(|until| until <= now);
        if self.count >= self.capacity
            && let Some(first) = self.known.values().flatten().map(|(_, until)| *until).min()
        {
            self.forget(|until| until <= first);
        }
    }

    fn forget(&mut self, expired: impl Fn(Instant) -> bool) {
        for names in self.known.values_mut() {
            names.retain(|(_, until)| !expired(*until));
        }
        self.known.retain(|_, names| !names.is_empty());
        self.count = self.known.values().map(Vec::len).sum();
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    const A: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
    const B: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2));

    #[test]
    fn names_live_as_long_as_they_say_within_bounds() {
        let now = Instant::now();
        let mut names = Names::new(10);
        let (short, long): (Arc<str>, Arc<str>) = ("short.test".into(), "long.test".into());
        names.remember(A, &short, Duration::ZERO, now);
        names.remember(A, &long, Duration::MAX, now);
        assert_eq!(names.of(A, now), [Arc::clone(&short), Arc::clone(&long)]);
        assert_eq!(names.of(A, now + SHORTEST), [long]);
        assert!(names.of(A, now + LONGEST).is_empty() && names.of(B, now).is_empty());
        names.remember(A, &short, Duration::from_mins(1), now);
        assert_eq!(names.of(A, now + SHORTEST)[0], short, "asked again, it lives longer");
    }

    #[test]
    fn the_memory_is_bounded() {
        let now = Instant::now();
        let mut names = Names::new(3);
        for (index, seconds) in [100_u64, 50, 200].into_iter().enumerate() {
            names.remember(A, &format!("{index}.test").into(), Duration::from_secs(seconds), now);
        }
        names.remember(B, &"b.test".into(), Duration::from_secs(70), now);
        assert_eq!(names.of(A, now), ["0.test".into(), "2.test".into()]);
        assert_eq!(names.of(B, now).len(), 1);
        names.remember(B, &"late.test".into(), Duration::from_mins(1), now + Duration::from_secs(150));
        assert_eq!(names.count, 2, "what has expired is forgotten first");
        let mut none = Names::new(0);
        none.remember(A, &"a.test".into(), SHORTEST, now);
        assert!(none.of(A, now).is_empty());
    }
}
