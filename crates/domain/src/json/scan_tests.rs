//! Tests of the scan: it accepts what the parser accepts, and locates values.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::Value;
use serde_json::value::RawValue;

use super::*;
use crate::json::parse;

/// A body with something of everything.
const CHAT: &str = r#" {"model":"acme/tiny","messages":[{"role":"system","content":"be \"brief\"\n\ud83d\ude00 \u00e4"},
    {"role":"user","content":[{"type":"text","text":"hello, ä and 😀"}]}],"temperature":-0.7e0,"max_tokens":1200,
    "stream":true,"stop":null,"x":{"a":{"b":[1,[],{}]},"c":false},"mod\u0065ls":[1.25,0]} "#;

/// Whether the text is accepted; the scan and the parser must agree.
fn taken(bytes: &[u8]) -> bool {
    let parsed = parse(bytes).is_ok();
    let scanned = std::str::from_utf8(bytes).is_ok_and(|text| whole(text, Scan::value).is_some());
    assert_eq!(scanned, parsed, "{:?}", String::from_utf8_lossy(bytes));
    parsed
}

/// The same, also with the text in an object and in a list.
fn taken_anywhere(text: &str) -> bool {
    let alone = taken(text.as_bytes());
    for inside in [format!("[{text}]"), format!(" [ {text} , {text} ] "), format!("{{\"a\":{text},\"b\": {text} }}")] {
        taken(inside.as_bytes());
    }
    alone
}

/// The members of an object, as a reader gets them.
fn members(text: &str) -> Option<Vec<(String, &str)>> {
    let mut members = Vec::new();
    let read = whole(text, |scan| {
        scan.object(|scan, key| {
            members.push((key.to_owned(), &text[scan.value()?]));
            Some(())
        })
    });
    read.map(|_| members)
}

fn object(keys: impl IntoIterator<Item = String>) -> String {
    let members: Vec<_> = keys.into_iter().map(|key| format!("{}:[{{}}]", Value::from(key))).collect();
    format!("{{{}}}", members.join(","))
}

/// Every text of at most so many of these letters.
fn every(letters: &[u8], most: u32) -> impl Iterator<Item = Vec<u8>> {
    (0..=most).flat_map(move |length| {
        let texts = 0..letters.len().pow(length);
        let letter = move |text: usize, place| letters[text / letters.len().pow(place) % letters.len()];
        texts.map(move |text| (0..length).map(|place| letter(text, place)).collect::<Vec<u8>>())
    })
}

#[test]
fn what_is_read_stands_where_it_is_said_to() {
    assert_eq!(
        members(" {\"a\" : 1 ,\"\\u0062\": [ 2 ] ,\n\"c\":\"\\\"\",\"\":{}} "),
        Some(vec![("a".into(), "1"), ("b".into(), "[ 2 ]"), ("c".into(), "\"\\\"\""), (String::new(), "{}")])
    );
    let mut items = Vec::new();
    let text = " [ 1,{\"a\":[]} , null] ";
    let list = whole(text, |scan| {
        scan.list(|scan| {
            items.push(&text[scan.value()?]);
            Some(())
        })
    });
    assert_eq!((list, items), (Some(1..text.len() - 1), vec!["1", "{\"a\":[]}", "null"]));
    assert_eq!(whole(" {} ", |scan| scan.object(|_, _| None)), Some(1..3));
    assert_eq!(whole("\t[\n]", |scan| scan.list(|_| None)), Some(1..4));
    assert_eq!(whole(" \"x\" ", |scan| scan.peek().zip(scan.value())), Some((b'"', 1..4)));
}

#[test]
fn a_reader_has_to_read() {
    assert_eq!(whole("{\"a\":1}", |scan| scan.object(|_, _| Some(()))), None);
    assert_eq!(whole("[1]", |scan| scan.list(|_| Some(()))), None);
    assert_eq!(whole("[1]", |scan| scan.object(|scan, _| scan.value().map(|_| ()))), None);
    assert_eq!(whole("{}", |scan| scan.list(|scan| scan.value().map(|_| ()))), None);
    assert_eq!(whole("[1]", |scan| scan.list(|_| None)), None);
    assert_eq!(whole("1", |_| Some(())), None);
}

#[test]
fn every_short_text_is_judged_as_by_the_parser() {
    let good = every(b"{}[],:\"1 ", 5).filter(|text| taken(text)).count();
    assert!(good > 100, "{good}");
    for word in
        ["true", "false", "null", "nul", "nulll", "True", "t", "tru e", "NaN", "Infinity", "\u{feff}1", "1\u{a0}"]
    {
        taken_anywhere(word);
    }
}

#[test]
fn levels_on_both_sides() {
    let lists = |n: usize| [vec![b'['; n], vec![b']'; n]].concat();
    let objects = |n: usize| format!("{}1{}", "{\"a\":".repeat(n), "}".repeat(n)).into_bytes();
    assert!(taken(&lists(127)) && taken(&objects(127)));
    for deep in [lists(128), objects(128), lists(100_000), vec![b'['; 100_000]] {
        assert!(!taken(&deep));
    }
    // Siblings are not deeper.
    assert!(taken(format!("[{}[]]", "[{\"a\":[]}],".repeat(200)).as_bytes()));
}

#[test]
fn keys_that_stand_twice_are_found_wherever_they_stand() {
    for count in [1, FEW - 1, FEW, FEW + 1, 2 * FEW, 200] {
        let keys = || (0..count).map(|n| format!("key {n}"));
        assert!(taken(object(keys()).as_bytes()), "{count} keys");
        for again in [0, count / 2, count - 1] {
            let text = object(keys());
            let begun = text.strip_suffix('}').unwrap();
            assert!(!taken(format!("{begun},\"key {again}\":1}}").as_bytes()));
            assert!(!taken(format!("{begun},\"k\\u0065y {again}\":1}}").as_bytes()));
            assert!(taken(format!("{begun},\"k\\u0065ys {again}\":1}}").as_bytes()));
        }
    }
    // A key counts after decoding its escapes; siblings and parents do not count.
    assert!(!taken(br#"{"model":1,"mod\u0065l":2}"#));
    assert!(!taken(br#"[{"a":{"b":1,"b":2}}]"#));
    assert!(taken(br#"[{"a":{"a":{"a":1},"b":1},"b":{"a":1}},{"a":1}]"#));
    let inner = object((0..100).map(|n| n.to_string()));
    assert!(taken(format!("{{\"0\":{inner},\"1\":{inner}}}").as_bytes()));
    assert!(!taken(format!("{{\"0\":{inner},\"1\":{inner},\"\\u0030\":0}}").as_bytes()));
}

#[test]
fn every_short_number_is_judged_as_by_the_parser() {
    for text in every(b"-+.012eE", 5) {
        taken(&text);
    }
}

#[test]
fn numbers_on_both_sides() {
    let (most, many) = ("9".repeat(308), "9".repeat(309));
    let tiny = format!("0.{}1", "0".repeat(400));
    let good = ["0", "-0", "-0.0e-0", "1E5", "1e308", "1.7976931348623157e308", "1e-999", "0e999", "0e99999999999"];
    let more =
        ["-1e-99999999999", "18446744073709551615", "18446744073709551616", "-9223372036854775809", &most, &tiny];
    for number in good.into_iter().chain(more) {
        assert!(taken_anywhere(number), "{number}");
    }
    let bad =
        ["", "-", "+1", "01", "-01", "00", ".5", "1.", "1.e5", "1e", "1e+", "1e+-1", "0x1", "1_0", "--1", "1.2.3"];
    let beyond = ["1e309", "-1e309", "1e999", "0.1e310", "1e99999999999", &many];
    for number in bad.into_iter().chain(beyond) {
        assert!(!taken_anywhere(number), "{number}");
    }
    // Numbers that only a full conversion decides.
    for length in 300..330 {
        for first in ["1", "17", "18", "99"] {
            let digits = format!("{first}{}", "0".repeat(length));
            for tail in ["", ".5", "e0", "e-20", "e+1", ".25e-1"] {
                taken_anywhere(&format!("{digits}{tail}"));
            }
        }
    }
}

#[test]
fn strings_end_where_they_end_whatever_stands_before() {
    let special =
        ["\"", "\\", "\\\\", "\\\"", "\\n", "\\u0022", "\n", "\u{1f}", "\0", " ", "!", "#", "[", "]", "\u{7f}"];
    let wide = ["\u{80}", "ä", "€", "😀"];
    for before in 0..75 {
        for piece in special.into_iter().chain(wide) {
            for after in [0, 1, 6, 7, 8, 9, 31, 32, 40] {
                let text = format!("\"{}{piece}{}\"", "a".repeat(before), "b".repeat(after));
                taken(text.as_bytes());
                taken(&text.as_bytes()[..text.len() - 1]);
            }
        }
    }
    for length in 0..100 {
        let text = format!("\"{}\"", "a".repeat(length));
        assert!(taken_anywhere(&text));
        assert_eq!(whole(&format!("{text}    "), Scan::value), Some(0..text.len()));
    }
}

#[test]
fn escapes_on_both_sides() {
    for good in
        [r#"\"\\\/\b\f\n\r\t"#, r"\u0000\uFFFF\uabCD", r"\ud800\udc00", r"\uDBFF\uDFFF", r"\ud83d\ude00\ud83d\ude00"]
    {
        assert!(taken_anywhere(&format!("\"{good}\"")), "{good}");
        assert!(taken(format!("{{\"{good}\":1}}").as_bytes()), "{good}");
    }
    let bad = [r"\x", r"\'", r"\u", r"\u12", r"\u12g4", r"\u+123", r"\u 123", r"\U0041", "\\\n", "\\"];
    let lone =
        [r"\ud800", r"\udc00", r"\udc00\ud800", r"\ud800\ud800", r"\ud800\u0041", r"\ud800\n", r"\ud800x", r"\uD800\u"];
    for bad in bad.into_iter().chain(lone) {
        assert!(!taken_anywhere(&format!("\"{bad}\"")), "{bad}");
        assert!(!taken(format!("{{\"{bad}\":1}}").as_bytes()), "{bad}");
        taken(format!("\"{bad}").as_bytes());
    }
}

#[test]
fn every_byte_of_a_body_matters_to_both() {
    assert!(taken(CHAT.as_bytes()));
    for at in 0..CHAT.len() {
        assert!(!taken(&CHAT.as_bytes()[..at]) || at == CHAT.len() - 1);
        let mut bytes = CHAT.as_bytes().to_vec();
        let was = bytes.remove(at);
        taken(&bytes);
        for other in *b"{}[],:\"\\ud0e.-+ tn\n\0\x7f\x80\xff" {
            bytes.insert(at, other);
            taken(&bytes);
            bytes.insert(at, was);
            taken(&bytes);
            bytes.drain(at..at + 2);
        }
    }
}

/// Pieces that make both good and bad JSON.
fn soup() -> impl Strategy<Value = String> {
    let pieces =
        ["{", "}", "[", "]", ",", "\"a\":", "\"b\":", "\"\\u0061\":", "1", "-1.5e3", "\"x\"", "null", "true", " "];
    prop::collection::vec(prop::sample::select(pieces.to_vec()), 0..16).prop_map(|pieces| pieces.concat())
}

/// Nested objects with few keys, so that some are duplicates.
fn crowded() -> impl Strategy<Value = String> {
    let key = prop::sample::select(vec!["a", "b", "c", "\\u0061", "d", "e", "f"]);
    Just("0".to_owned()).prop_recursive(4, 40, 5, move |inner| {
        prop::collection::vec((key.clone(), inner), 0..5).prop_map(|members| {
            let members: Vec<_> = members.iter().map(|(key, value)| format!("\"{key}\":{value}")).collect();
            format!("{{{}}}", members.join(","))
        })
    })
}

/// Strings of escapes, good and bad.
fn escapes() -> impl Strategy<Value = String> {
    let pieces = [r#"\""#, r"\\", r"\/", r"\n", r"\u0061", r"\ud83d", r"\ude00", r"\ud83d\ude00", r"\u00", r"\x", r"\"];
    let plain = ["\"", "\n", "ä", "😀", "a", "bcdefghij", "0123456789abcdef0123456789abcdef"];
    let pieces = [&pieces[..], &plain].concat();
    let pieces = prop::collection::vec(prop::sample::select(pieces), 0..6);
    pieces.prop_map(|pieces| format!("\"{}\"", pieces.concat()))
}

fn numbers() -> impl Strategy<Value = String> {
    prop_oneof![
        "-?(0|[1-9][0-9]{0,25}|0[0-9]{1,2})(\\.[0-9]{0,25})?([eE][-+]?[0-9]{0,3})?",
        "-?[1-9][0-9]{280,320}(\\.[0-9]{1,5})?(e-?[0-9]{1,2})?",
        "[-+.eE0-9]{0,8}",
    ]
}

/// A body with some bytes replaced, inserted and deleted.
fn mutated() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![any::<u8>(), prop::sample::select(b"{}[],:\"\\ud0e.- tn\n".to_vec())];
    prop::collection::vec((0..3_u8, any::<prop::sample::Index>(), byte), 1..4).prop_map(|changes| {
        let mut bytes = CHAT.as_bytes().to_vec();
        for (change, place, byte) in changes {
            let at = place.index(bytes.len());
            match change {
                0 => bytes[at] = byte,
                1 => bytes.insert(at, byte),
                _ => {
                    bytes.remove(at);
                }
            }
        }
        bytes
    })
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,40}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(".{0,12}", inner, 0..4)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn texts_are_judged_as_by_the_parser(text in prop_oneof![soup(), crowded(), ".*"]) {
        taken(text.as_bytes());
    }

    #[test]
    fn strings_and_numbers_are_judged_as_by_the_parser(text in prop_oneof![escapes(), numbers()]) {
        taken_anywhere(&text);
    }

    #[test]
    fn keys_are_judged_as_by_the_parser(keys in prop::collection::vec(escapes(), 0..4)) {
        let members: Vec<_> = keys.iter().map(|key| format!("{key}:0")).collect();
        taken(format!("{{{}}}", members.join(",")).as_bytes());
    }

    #[test]
    fn many_keys_are_judged_as_by_the_parser(keys in prop::collection::vec(0..400_u16, 0..80)) {
        let text = object(keys.iter().map(u16::to_string));
        let mut unique = keys.clone();
        unique.sort_unstable();
        unique.dedup();
        prop_assert_eq!(taken(text.as_bytes()), unique.len() == keys.len());
    }

    #[test]
    fn bytes_are_judged_as_by_the_parser(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
        taken(&bytes);
    }

    #[test]
    fn bodies_are_judged_as_by_the_parser(bytes in mutated()) {
        taken(&bytes);
    }

    #[test]
    fn members_are_what_serde_finds(found in value(), pretty in any::<bool>()) {
        let text = if pretty { format!("{found:#}") } else { found.to_string() };
        prop_assert!(taken(text.as_bytes()));
        let mut expected: Option<Vec<(String, &str)>> = found.is_object().then(|| {
            let members: BTreeMap<String, &RawValue> = serde_json::from_str(&text).unwrap();
            members.into_iter().map(|(key, value)| (key, value.get())).collect()
        });
        if let Some(expected) = &mut expected {
            expected.sort_by_key(|(_, value)| value.as_ptr());
        }
        prop_assert_eq!(members(&text), expected);
    }

    #[test]
    fn plain_bytes_are_counted(
        bytes in prop::collection::vec(
            prop_oneof![
                60 => Just(b'a'),
                10 => prop::sample::select(b" !#[]^\x7f\x80\x9f\xa1\xa2\xdc\xff".to_vec()),
                1 => prop::sample::select(b"\"\\\x00\x01\x1f".to_vec()),
                1 => any::<u8>(),
            ],
            0..150,
        ),
    ) {
        let special = bytes.iter().position(|byte| matches!(*byte, b'"' | b'\\' | 0..0x20));
        prop_assert_eq!(plain(&bytes), special.unwrap_or(bytes.len()));
    }
}
