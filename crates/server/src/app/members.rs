//! What `berth doctor` says of the members of a PostgreSQL cluster.

use berth_host::Finding;

use crate::db::{Said, Surveyed, survey};

/// What each of them says now, and what is wrong with all together; nothing where the database is a file.
pub(super) async fn findings(url: &str) -> Vec<Finding> {
    survey(url).await.map(|surveyed| of(&surveyed)).unwrap_or_default()
}

fn of(members: &[Surveyed]) -> Vec<Finding> {
    let [single] = members else {
        let mut lines: Vec<_> = members.iter().map(of_member).collect();
        lines.push(of_all(members));
        return lines;
    };
    let text = match &single.member.said {
        Said::Leads(_) => "takes writes",
        Said::Follows => "takes no writes: it is a standby. Name its leader in database_url, or all members",
        Said::Nothing(why) => why,
    };
    vec![line(matches!(single.member.said, Said::Leads(_)), format!("{} {text}", single.member.place))]
}

fn of_member(it: &Surveyed) -> Finding {
    let place = &it.member.place;
    match &it.member.said {
        Said::Leads(timeline) => line(true, format!("{place} leads, on timeline {timeline}")),
        Said::Follows => line(true, format!("{place} follows")),
        Said::Nothing(why) => {
            let next =
                "Until it is back, the loss of one more stops writes; on its host type: systemctl restart patroni";
            line(false, format!("{place} {}. {next}", why.trim_end_matches('.')))
        }
    }
}

/// Whether exactly one leads, and whether what it acknowledges is on another one, too.
fn of_all(members: &[Surveyed]) -> Finding {
    let lead = members.iter().filter_map(|it| match it.member.said {
        Said::Leads(timeline) => Some((timeline, it)),
        _ => None,
    });
    let mut leaders: Vec<_> = lead.collect();
    leaders.sort_by_key(|(timeline, _)| *timeline);
    let Some(((_, leader), former)) = leaders.split_last() else {
        let text = "none of its members leads, so that writes wait; on the host of one of them type: patronictl list";
        return line(false, text.into());
    };
    if let Some((_, former)) = former.first() {
        let (old, new) = (&former.member.place, &leader.member.place);
        let text = format!(
            "two of its members lead. {new} is followed, whose timeline is later. On the host of {old} type: systemctl \
             restart patroni; it follows then, and loses what only it has"
        );
        return line(false, text);
    }
    match &leader.waits_for {
        Some(names) => line(true, format!("acknowledges a commit once another member has it, too ({names})")),
        None => line(
            false,
            "acknowledges commits that no other member has, and that go with its leader; type: patronictl edit-config \
             --set synchronous_mode=true --set synchronous_mode_strict=true"
                .into(),
        ),
    }
}

fn line(good: bool, text: String) -> Finding {
    Finding { good, what: "database".into(), text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::Member;

    fn member(place: &str, said: Said, waits_for: Option<&str>) -> Surveyed {
        let member = Member { place: place.into(), said };
        Surveyed { member, waits_for: waits_for.map(str::to_owned) }
    }

    /// Whether each line is good, and all of their text.
    fn told(members: &[Surveyed]) -> (Vec<bool>, String) {
        let lines = of(members);
        let texts: Vec<_> = lines.iter().map(|line| line.text.as_str()).collect();
        (lines.iter().map(|line| line.good).collect(), texts.join("\n"))
    }

    #[test]
    fn a_single_server_says_whether_it_takes_writes() {
        for (said, good, word) in [
            (Said::Leads(0), true, "a takes writes"),
            (Said::Follows, false, "all members"),
            (Said::Nothing("refuses".into()), false, "a refuses"),
        ] {
            let (lines, text) = told(&[member("a", said, None)]);
            assert!(lines == [good] && text.contains(word), "{text}");
        }
    }

    #[test]
    fn each_member_says_what_it_does_and_all_what_is_wrong() {
        let leads = |place, timeline, waits| member(place, Said::Leads(timeline), waits);
        let follows = |place| member(place, Said::Follows, None);
        let away = |place| member(place, Said::Nothing("does not answer.".into()), None);
        for (members, good, words) in [
            (vec![leads("a", 3, Some("b")), follows("b")], vec![true; 3], "a leads, on timeline 3\nb follows\nacknow"),
            (vec![leads("a", 3, Some("b")), away("b")], vec![true, false, true], "b does not answer. Until"),
            (vec![leads("a", 3, None), follows("b")], vec![true, true, false], "--set synchronous_mode_strict=true"),
            (vec![follows("a"), away("b")], vec![true, false, false], "none of its members leads"),
            (
                vec![leads("a", 4, Some("b")), leads("b", 3, Some("a"))],
                vec![true, true, false],
                "a is followed, whose timeline is later. On the host of b",
            ),
        ] {
            let (lines, text) = told(&members);
            assert!(lines == good && text.contains(words), "{text}");
        }
    }
}
