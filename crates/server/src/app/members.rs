//! What `berth doctor` says of the members of a PostgreSQL cluster.

use berth_host::Finding;

use crate::db::{Said, Surveyed, Waits, survey};

/// What each of them says now, and what is wrong with all together; nothing where the database is a file.
pub(super) async fn findings(url: &str) -> Vec<Finding> {
    survey(url).await.map(|surveyed| of(&surveyed)).unwrap_or_default()
}

fn of(members: &[Surveyed]) -> Vec<Finding> {
    let mut lines = match members {
        [single] => vec![of_single(single)],
        _ => of_cluster(members),
    };
    lines.extend(unverified(members));
    lines
}

fn of_single(single: &Surveyed) -> Finding {
    let text = match &single.member.said {
        Said::Leads(_) => "takes writes",
        Said::Follows => "takes no writes: it is a standby. Name its leader in database_url, or all members",
        Said::Away(why) | Said::Refuses(why) => why,
    };
    line(matches!(single.member.said, Said::Leads(_)), format!("{} {text}", single.member.place))
}

fn of_cluster(members: &[Surveyed]) -> Vec<Finding> {
    let mut lines: Vec<_> = members.iter().map(of_member).collect();
    lines.extend(away(members));
    lines.push(of_all(members));
    lines
}

fn of_member(it: &Surveyed) -> Finding {
    let place = &it.member.place;
    match &it.member.said {
        Said::Leads(timeline) => line(true, format!("{place} leads, on timeline {timeline}")),
        Said::Follows => line(true, format!("{place} follows")),
        Said::Away(why) | Said::Refuses(why) => {
            let next = if is_away(it) {
                "Look whether the host is up; on it type: systemctl status patroni"
            } else {
                "It runs, so do not restart it for that. Look at the password and the certificates that database_url \
                 names, at pg_hba in /etc/patroni/config.yml on its host, and whether max_connections are in use"
            };
            line(false, format!("{place} {}. {next}", why.trim_end_matches('.')))
        }
    }
}

fn is_away(it: &Surveyed) -> bool {
    matches!(it.member.said, Said::Away(_))
}

/// What those that are away mean for the one that leads.
fn away(members: &[Surveyed]) -> Option<Finding> {
    let (away, left): (Vec<_>, Vec<_>) = members.iter().partition(|it| is_away(it));
    if away.is_empty() || !left.iter().any(|it| matches!(it.member.said, Said::Leads(_))) {
        return None;
    }
    let text = match left.as_slice() {
        // It says itself that it waits for nobody, or in vain.
        [leader] if matches!(leader.waits, Some(Waits::ForNobody | Waits::InVain(_))) => return None,
        [_] => "only its leader answers: writes wait for as long as no other member follows it",
        _ if away.len() == 1 => "one of its members is away: until it is back, the loss of one more stops writes",
        _ => return None,
    };
    Some(line(false, text.into()))
}

/// Whether exactly one leads, and whether what it acknowledges is on another one, too.
fn of_all(members: &[Surveyed]) -> Finding {
    let lead = members.iter().filter_map(|it| match it.member.said {
        Said::Leads(timeline) => Some((timeline, it)),
        _ => None,
    });
    let mut leaders: Vec<_> = lead.collect();
    leaders.sort_by_key(|(timeline, _)| *timeline);
    match leaders.as_slice() {
        [] => line(
            false,
            "none of its members leads, so that writes wait; on the host of one of them type: patronictl -c \
             /etc/patroni/config.yml list"
                .into(),
        ),
        [(_, leader)] => of_leader(leader.waits.as_ref()),
        [.., (earlier, old), (later, new)] => line(false, of_two(old, new, earlier < later)),
    }
}

/// What is said of two that lead.
fn of_two(old: &Surveyed, new: &Surveyed, differ: bool) -> String {
    let (old, new) = (&old.member.place, &new.member.place);
    if differ {
        format!(
            "two of its members lead. {new} is followed, whose timeline is later. On the host of {old} type: systemctl \
             restart patroni; it follows then, and loses what only it has"
        )
    } else {
        format!(
            "two of its members lead on the same timeline, {old} and {new}, and nobody can tell which is right. Compare \
             what they have, and ask both: SELECT pg_current_wal_lsn(). Stop neither before"
        )
    }
}

/// Whom the only one that leads waits for.
fn of_leader(waits: Option<&Waits>) -> Finding {
    match waits {
        Some(Waits::For(names)) => {
            line(true, format!("acknowledges a commit once another member has it, too ({names})"))
        }
        Some(Waits::InVain(names)) => line(
            false,
            format!(
                "no member follows it, so that writes wait ({names}); on their hosts look at: journalctl -u patroni"
            ),
        ),
        Some(Waits::Unknown(why)) => line(false, format!("does not say whom its commits wait for: {why}")),
        Some(Waits::ForNobody) | None => line(
            false,
            "acknowledges commits that no other member has, and that go with its leader; type: patronictl -c \
             /etc/patroni/config.yml edit-config --set synchronous_mode=true --set synchronous_mode_strict=true"
                .into(),
        ),
    }
}

/// The addresses at which anybody may answer.
fn unverified(members: &[Surveyed]) -> Option<Finding> {
    let places: Vec<_> = members.iter().filter(|it| !it.is_verified).map(|it| it.member.place.as_str()).collect();
    (!places.is_empty()).then(|| {
        let text = format!(
            "the password and the rows go to whoever answers as {}: no certificate is verified. Where others are on \
             that network, end database_url with ?sslmode=verify-full&sslrootcert=…",
            places.join(" or ")
        );
        line(true, text)
    })
}

fn line(good: bool, text: String) -> Finding {
    Finding { good, what: "database".into(), text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::Member;

    fn member(place: &str, said: Said, waits: Option<Waits>) -> Surveyed {
        let member = Member { place: place.into(), said };
        Surveyed { member, waits, is_verified: true }
    }

    fn leads(place: &str, timeline: i64, waits: Waits) -> Surveyed {
        member(place, Said::Leads(timeline), Some(waits))
    }

    /// One that leads, and whose commits wait for another one.
    fn waits(place: &str, timeline: i64) -> Surveyed {
        leads(place, timeline, Waits::For("x".into()))
    }

    fn follows(place: &str) -> Surveyed {
        member(place, Said::Follows, None)
    }

    fn away(place: &str) -> Surveyed {
        member(place, Said::Away("did not answer within 2s".into()), None)
    }

    fn refuses(place: &str) -> Surveyed {
        member(place, Said::Refuses("refuses: too many clients".into()), None)
    }

    /// Whether each line is good, and all of their text.
    fn told(members: &[Surveyed]) -> (Vec<bool>, String) {
        let lines = of(members);
        let texts: Vec<_> = lines.iter().map(|line| line.text.as_str()).collect();
        (lines.iter().map(|line| line.good).collect(), texts.join("\n"))
    }

    fn check(members: &[Surveyed], good: &[bool], words: &str) {
        let (lines, text) = told(members);
        assert!(lines == good && text.contains(words), "{lines:?} {text}");
    }

    #[test]
    fn a_single_server_says_whether_it_takes_writes() {
        for (said, good, word) in [
            (Said::Leads(0), true, "a takes writes"),
            (Said::Follows, false, "all members"),
            (Said::Refuses("refuses: no".into()), false, "a refuses"),
        ] {
            check(&[member("a", said, None)], &[good], word);
        }
    }

    #[test]
    fn whom_commits_wait_for_is_said() {
        for (waits, good, words) in [
            (Waits::For("b".into()), true, "a leads, on timeline 3\nb follows\nacknowledges a commit once"),
            (Waits::ForNobody, false, "patronictl -c /etc/patroni/config.yml edit-config --set synchronous_mode=true"),
            (Waits::InVain("b".into()), false, "no member follows it, so that writes wait (b); on their hosts"),
            (Waits::Unknown("refuses: no".into()), false, "does not say whom its commits wait for: refuses: no"),
        ] {
            let advises = waits == Waits::ForNobody;
            let members = [leads("a", 3, waits), follows("b")];
            check(&members, &[true, true, good], words);
            assert_eq!(told(&members).1.contains("edit-config"), advises);
        }
    }

    #[test]
    fn who_is_away_is_counted() {
        let one_more = "the loss of one more stops writes";
        check(&[waits("a", 3), follows("b"), away("c")], &[true, true, false, false, true], one_more);
        for (members, good, words) in [
            (vec![waits("a", 3), away("b")], vec![true, false, false, true], "only its leader answers: writes wait"),
            (vec![waits("a", 3), away("b"), away("c")], vec![true, false, false, false, true], "only its leader"),
            (
                vec![leads("a", 3, Waits::InVain("b".into())), away("b")],
                vec![true, false, false],
                "no member follows it, so that writes wait",
            ),
            (vec![follows("a"), follows("b"), away("c")], vec![true, true, false, false], "none of its members leads"),
            (vec![follows("a"), away("b")], vec![true, false, false], "patronictl -c /etc/patroni/config.yml list"),
            (vec![waits("a", 3), follows("b"), refuses("c")], vec![true, true, false, true], "c refuses"),
        ] {
            check(&members, &good, words);
            assert!(!told(&members).1.contains(one_more));
        }
    }

    #[test]
    fn what_to_do_goes_by_what_was_said() {
        let words = "systemctl status patroni";
        for (it, is_away) in [(away("c"), true), (refuses("c"), false)] {
            let (_, text) = told(&[waits("a", 3), follows("b"), it]);
            assert_eq!((text.contains(words), text.contains("do not restart it")), (is_away, !is_away), "{text}");
        }
    }

    #[test]
    fn of_two_that_lead_the_later_one_is_right_if_any() {
        let differ = [waits("a", 4), waits("b", 3)];
        check(&differ, &[true, true, false], "a is followed, whose timeline is later. On the host of b type");
        let same = [waits("a", 4), waits("b", 4)];
        check(&same, &[true, true, false], "SELECT pg_current_wal_lsn(). Stop neither before");
        assert!(!told(&same).1.contains("systemctl"));
    }

    #[test]
    fn who_answers_is_said_to_be_anybody_where_nobody_verifies() {
        let anybody = |it: Surveyed| Surveyed { is_verified: false, ..it };
        let words = "go to whoever answers as a or b: no";
        check(&[anybody(waits("a", 3)), anybody(follows("b"))], &[true; 4], words);
        check(&[anybody(member("a", Said::Leads(0), None))], &[true; 2], "sslmode=verify-full&sslrootcert=");
        assert!(!told(&[waits("a", 3), follows("b")]).1.contains("sslmode"));
    }
}
