use proptest::prelude::*;

use super::*;

const BOUNDS: Bounds = Bounds { line: 40, event: 100 };

/// What a reader finds in pieces, and why it stops.
type Found = (Vec<Event>, Option<Unreadable>);

fn read<'a>(pieces: impl IntoIterator<Item = &'a [u8]>, bounds: Bounds) -> Found {
    let (mut reader, mut events) = (Reader::new(bounds), Vec::new());
    for piece in pieces {
        reader.feed(piece);
        loop {
            match reader.pop() {
                Ok(Some(event)) => events.push(event),
                Ok(None) => break,
                Err(unreadable) => {
                    assert_eq!(reader.pop(), Err(unreadable), "it stays so");
                    return (events, Some(unreadable));
                }
            }
        }
    }
    (events, None)
}

fn whole(text: &str) -> Found {
    read([text.as_bytes()], BOUNDS)
}

fn event(name: &str, data: &str) -> Event {
    Event { name: name.into(), data: data.into(), ..Event::default() }
}

/// The same by the standard's words, of text that is all there.
fn by_the_book(text: &str) -> Vec<Event> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    // A CR at the very end may be half a line break: what it ends is not over.
    let text = text.strip_suffix('\r').unwrap_or(text);
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    let (mut events, mut id, mut retry) = (Vec::new(), String::new(), None);
    let (mut name, mut data) = (String::new(), String::new());
    for line in text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
        if line.is_empty() {
            let (name, data) = (std::mem::take(&mut name), std::mem::take(&mut data));
            if let Some(data) = data.strip_suffix('\n') {
                let name = if name.is_empty() { "message".into() } else { name };
                events.push(Event { name, data: data.into(), id: id.clone(), retry });
            }
            continue;
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => name = value.into(),
            "data" => data = format!("{data}{value}\n"),
            "id" if !value.contains('\0') => id = value.into(),
            "retry" if !value.is_empty() && value.bytes().all(|b| b.is_ascii_digit()) => {
                retry = value.parse().ok().or(retry);
            }
            _ => {}
        }
    }
    events
}

#[test]
fn an_event_is_what_its_lines_say() {
    let text =
        "\u{feff}: hello\n\nevent: log\r\ndata: a\rdata:  b\ndata\r\n\r\nid: 7\nretry: 90\ndata: x\n\ndata:y\n\n";
    let later = |data: &str| Event { id: "7".into(), retry: Some(90), ..event(MESSAGE, data) };
    assert_eq!(whole(text), (vec![event("log", "a\n b\n"), later("x"), later("y")], None));
}

#[test]
fn what_has_no_data_is_no_event_and_leaves_no_name() {
    assert_eq!(whole("event: exit\n\ndata: x\n\n").0, [event(MESSAGE, "x")]);
    let told = Event { id: "7".into(), retry: Some(5), ..event(MESSAGE, "") };
    assert_eq!(whole("id: 7\nretry: 5\n\ndata:\n\n").0, [told]);
    assert_eq!(whole("data: not over\n"), (Vec::new(), None));
}

#[test]
fn what_makes_no_sense_in_a_field_is_as_if_it_were_absent() {
    for bad in ["id: a\0b", "retry: 5s", "retry:", "retry: -1", "Data: x", " data: x", "datas: x", "\u{feff}data: x"] {
        let text = format!("data: 1\n\n{bad}\ndata: 2\n\n");
        assert_eq!(whole(&text).0, [event(MESSAGE, "1"), event(MESSAGE, "2")], "{bad:?}");
    }
}

#[test]
fn lines_and_events_have_a_most_on_both_sides_of_which_they_are_judged() {
    let line = |bytes: usize| format!("data: {}\n\n", "x".repeat(bytes - "data: ".len()));
    assert_eq!(whole(&line(BOUNDS.line)).0.len(), 1);
    assert_eq!(whole(&line(BOUNDS.line + 1)), (Vec::new(), Some(Unreadable::Line(BOUNDS.line))));
    let bounds = Bounds { line: 200, event: 100 };
    let event = |bytes: usize| format!("data: 1\n:{}\n\n", "x".repeat(bytes - "data: 1\n:\n\n".len()));
    let read = |text: &str| read([text.as_bytes()], bounds);
    assert_eq!(read(&event(bounds.event)).0.len(), 1);
    let large = event(bounds.event + 1);
    assert_eq!(read(&large), (Vec::new(), Some(Unreadable::Event(bounds.event))));
    assert_eq!(read(&format!("data: 1\n\n{large}")).0.len(), 1, "what came before is told");
}

#[test]
fn what_never_ends_is_given_up_while_it_comes() {
    let mut reader = Reader::new(Bounds { line: 10, event: 20 });
    reader.feed(b"data: 6789");
    assert_eq!(reader.pop(), Ok(None));
    reader.feed(b"0");
    assert_eq!(reader.pop(), Err(Unreadable::Line(10)));
    reader.feed(b"\n\ndata: x\n\n");
    assert_eq!(reader.pop(), Err(Unreadable::Line(10)));
}

#[test]
fn only_utf_8_is_text() {
    let (events, why) = read([&b"data: x\n\ndata: \xff\n\ndata: y\n\n"[..]], BOUNDS);
    assert_eq!((events.len(), why), (1, Some(Unreadable::Text)));
}

#[test]
fn what_comes_byte_by_byte_is_searched_once_and_moved_twice_at_most() {
    const EACH: usize = 1 << 16;
    let one = format!("data: {}\n\n", "x".repeat(EACH));
    let stream = one.repeat(4);
    for size in [1, 3, 1000, EACH + 11, stream.len()] {
        let mut reader = Reader::new(Bounds::of_line(EACH + 6));
        let mut found = 0;
        for piece in stream.as_bytes().chunks(size) {
            reader.feed(piece);
            while reader.pop().unwrap().is_some() {
                found += 1;
            }
        }
        assert_eq!(found, 4, "in pieces of {size}");
        assert!(reader.work <= 2 * stream.len(), "{} for {} in pieces of {size}", reader.work, stream.len());
    }
}

#[test]
fn what_is_written_is_read() {
    let mut out = Vec::new();
    for (id, name, data) in [(None, None, "{}"), (Some("7"), Some("log"), "a\n\nb"), (None, Some("end"), "")] {
        write(&mut out, id, name, data);
        out.extend_from_slice(KEEP_ALIVE);
    }
    let id = "7".to_owned();
    let expected = vec![
        event(MESSAGE, "{}"),
        Event { id: id.clone(), ..event("log", "a\n\nb") },
        Event { id, ..event("end", "") },
    ];
    assert_eq!(read([&out[..]], BOUNDS), (expected, None));
}

/// A stream in which all that matters is likely.
fn stream() -> impl Strategy<Value = String> {
    let part = prop::sample::select(vec![
        "data: x",
        "data:",
        "data",
        "event: log",
        "event",
        "id: 1",
        "id",
        "retry: 5",
        "retry: x",
        ": hm",
        ":",
        "\n",
        "\n",
        "\n\n",
        "\r",
        "\r\n",
        "\r\n\r\n",
        "ü",
        "\u{feff}",
        "\0",
        "other: y",
        " ",
        "0123456789",
    ]);
    prop::collection::vec(part, 0..40).prop_map(|parts| parts.concat())
}

/// Cuts bytes into pieces of these sizes, over and over.
fn cut<'a>(bytes: &'a [u8], sizes: &[usize]) -> Vec<&'a [u8]> {
    let (mut pieces, mut rest) = (Vec::new(), bytes);
    for size in sizes.iter().cycle() {
        if rest.is_empty() {
            break;
        }
        let (piece, after) = rest.split_at((*size).min(rest.len()));
        pieces.push(piece);
        rest = after;
    }
    pieces
}

proptest! {
    #[test]
    fn no_cutting_changes_what_is_found(
        text in stream(),
        sizes in prop::collection::vec(1_usize..30, 1..12),
        line in 1_usize..60,
        event in 1_usize..120,
    ) {
        let bounds = Bounds { line, event };
        let found = read([text.as_bytes()], bounds);
        prop_assert_eq!(&read(cut(text.as_bytes(), &sizes), bounds), &found);
        prop_assert_eq!(&read(text.as_bytes().chunks(1), bounds), &found);
    }

    #[test]
    fn what_is_found_stands_in_the_book(text in stream()) {
        let (events, why) = read([text.as_bytes()], Bounds::of_line(1 << 20));
        prop_assert_eq!(why, None);
        prop_assert_eq!(events, by_the_book(&text));
    }

    #[test]
    fn arbitrary_bytes_are_no_trouble(bytes: Vec<u8>, sizes in prop::collection::vec(1_usize..9, 1..5)) {
        let found = read([&bytes[..]], BOUNDS);
        prop_assert_eq!(read(cut(&bytes, &sizes), BOUNDS), found);
    }

    #[test]
    fn all_that_is_written_is_read(said in prop::collection::vec(("[a-z]{0,9}", "(?s).{0,80}"), 0..8)) {
        let mut out = Vec::new();
        for (name, data) in &said {
            write(&mut out, None, Some(name).filter(|name| !name.is_empty()).map(String::as_str), data);
        }
        let lines = |data: &str| data.replace("\r\n", "\n").replace('\r', "\n");
        let named = |name: &str| if name.is_empty() { MESSAGE.to_owned() } else { name.to_owned() };
        let expected: Vec<_> = said.iter().map(|(name, data)| event(&named(name), &lines(data))).collect();
        prop_assert_eq!(read(cut(&out, &[7, 1, 64]), Bounds::of_line(1 << 20)), (expected, None));
    }
}
