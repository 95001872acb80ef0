//! One pass over a JSON text, for a reader that needs the positions of a few values.
//!
//! [`Scan`] accepts exactly what [`parse`](super::parse) accepts, and so refuses duplicate keys, too; it builds
//! nothing. The reader pulls: it asks for the members of an object, for the items of a list, or for a value of any
//! kind, which the scan checks to its depths and locates. So the reader's own control flow is the path to what it
//! wants, and no callback runs for the rest. A visitor would get everything, and would have to track where it is.
//!
//! The scan does not say what is wrong. A caller that needs to know asks the parser.

use std::borrow::Cow;
use std::collections::HashSet;
use std::ops::Range;

/// Keys of an object that are compared one by one; every further batch of as many goes to a set.
const FEW: usize = 32;
/// Deepest nesting of lists and objects, as in serde_json.
const LEVELS: usize = 127;
/// Number of digits that, without an exponent, always make a finite float: the largest float is 1.8e308.
const FINITE: usize = 308;
/// Bytes of a string that are examined as one number.
const WORD: usize = 8;
/// Bytes of a string that are examined in one step, where many are plain.
const BLOCK: usize = 32;

/// Reads `text` as one value with nothing after it. `read` takes that value from the scan, in any of its ways. `None`
/// where [`parse`](super::parse) refuses the text, or where `read` returns it.
pub fn whole<'a, T>(text: &'a str, read: impl FnOnce(&mut Scan<'a>) -> Option<T>) -> Option<T> {
    let mut scan = Scan { text, at: 0, levels: 0, keys: Vec::with_capacity(FEW) };
    let found = read(&mut scan)?;
    scan.peek().is_none().then_some(found)
}

/// A position in a text, before a value. Useless after a `None`.
pub struct Scan<'a> {
    text: &'a str,
    at: usize,
    /// How many lists and objects are open.
    levels: usize,
    /// The keys of all open objects; those of the innermost one are at the end.
    keys: Vec<Cow<'a, str>>,
}

impl<'a> Scan<'a> {
    /// The first byte of the next token, after white space; `None` at the end of the text.
    pub fn peek(&mut self) -> Option<u8> {
        loop {
            match *self.text.as_bytes().get(self.at)? {
                b' ' | b'\n' | b'\r' | b'\t' => self.at += 1,
                byte => return Some(byte),
            }
        }
    }

    /// Skips a value of any kind. Returns its position in the text, in bytes; `None` if it is malformed.
    pub fn value(&mut self) -> Option<Range<usize>> {
        let first = self.peek()?;
        let start = self.at;
        match first {
            b'{' => return self.object(|scan, _| scan.value().map(|_| ())),
            b'[' => return self.list(|scan| scan.value().map(|_| ())),
            b'"' => self.string().map(|_| ())?,
            b't' => self.word(b"true")?,
            b'f' => self.word(b"false")?,
            b'n' => self.word(b"null")?,
            _ => self.number()?,
        }
        Some(start..self.at)
    }

    /// Skips an object. `member` gets every key with its escapes decoded, and must skip its value. Returns the object's
    /// position in the text, in bytes; `None` if it is none.
    pub fn object(&mut self, mut member: impl FnMut(&mut Self, &str) -> Option<()>) -> Option<Range<usize>> {
        let start = self.open(b'{')?;
        let (first, mut many) = (self.keys.len(), None);
        let mut ended = self.skip(b'}')?;
        while !ended {
            let key = self.key()?;
            self.skip(b':')?.then_some(())?;
            member(self, &key)?;
            self.note(key, first, &mut many)?;
            ended = self.ended(b'}')?;
        }
        self.keys.truncate(first);
        self.levels -= 1;
        Some(start..self.at)
    }

    /// Skips a list. `item` is called before each of its items, and must skip it. Returns the list's position in the
    /// text, in bytes; `None` if it is none.
    pub fn list(&mut self, mut item: impl FnMut(&mut Self) -> Option<()>) -> Option<Range<usize>> {
        let start = self.open(b'[')?;
        let mut ended = self.skip(b']')?;
        while !ended {
            item(self)?;
            ended = self.ended(b']')?;
        }
        self.levels -= 1;
        Some(start..self.at)
    }

    /// Skips an opening bracket and goes a level deeper. Returns its position.
    fn open(&mut self, bracket: u8) -> Option<usize> {
        if self.peek()? != bracket || self.levels == LEVELS {
            return None;
        }
        let start = self.at;
        self.at += 1;
        self.levels += 1;
        Some(start)
    }

    /// Skips a comma or a closing bracket. Returns whether it was the bracket.
    fn ended(&mut self, bracket: u8) -> Option<bool> {
        if self.skip(b',')? {
            return Some(false);
        }
        self.skip(bracket)?.then_some(true)
    }

    /// Skips the next byte if it is this one. Returns whether it was; `None` at the end of the text.
    fn skip(&mut self, byte: u8) -> Option<bool> {
        let found = self.peek()? == byte;
        self.at += usize::from(found);
        Some(found)
    }

    /// Skips a key and returns it decoded, borrowed unless it has escapes.
    fn key(&mut self) -> Option<Cow<'a, str>> {
        if self.peek()? != b'"' {
            return None;
        }
        let start = self.at;
        let escaped = self.string()?;
        if escaped {
            let key: String = serde_json::from_str(self.text.get(start..self.at)?).ok()?;
            return Some(Cow::Owned(key));
        }
        self.text.get(start + 1..self.at - 1).map(Cow::Borrowed)
    }

    /// Remembers a key of the object whose keys begin at `first`; `None` if it is a duplicate.
    fn note(&mut self, key: Cow<'a, str>, first: usize, many: &mut Option<HashSet<Cow<'a, str>>>) -> Option<()> {
        let among_many = many.as_ref().is_some_and(|many| many.contains(&key));
        if among_many || self.keys.get(first..)?.contains(&key) {
            return None;
        }
        self.keys.push(key);
        if self.keys.len() - first == FEW {
            many.get_or_insert_default().extend(self.keys.drain(first..));
        }
        Some(())
    }

    /// Skips a string that begins here. Returns whether it has escapes.
    fn string(&mut self) -> Option<bool> {
        self.at += 1;
        let mut escaped = false;
        loop {
            self.at += plain(self.rest());
            match *self.rest().first()? {
                b'"' => {
                    self.at += 1;
                    return Some(escaped);
                }
                b'\\' => {
                    escaped = true;
                    self.escape()?;
                }
                _ => return None,
            }
        }
    }

    /// Skips an escape that begins here.
    fn escape(&mut self) -> Option<()> {
        match *self.rest().get(1)? {
            b'u' => self.character(),
            b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => {
                self.at += 2;
                Some(())
            }
            _ => None,
        }
    }

    /// Skips a character in hexadecimal digits; one beyond the first 65,536 takes two surrogates.
    fn character(&mut self) -> Option<()> {
        match self.unit()? {
            0xD800..0xDC00 => matches!(self.unit()?, 0xDC00..0xE000).then_some(()),
            0xDC00..0xE000 => None,
            _ => Some(()),
        }
    }

    /// Skips `\u` and four hexadecimal digits, and returns their number.
    fn unit(&mut self) -> Option<u32> {
        let digits: &[u8; 4] = self.rest().strip_prefix(br"\u")?.first_chunk()?;
        let mut unit = 0;
        for digit in digits {
            unit = unit * 16 + char::from(*digit).to_digit(16)?;
        }
        self.at += 6;
        Some(unit)
    }

    /// Skips a word.
    fn word(&mut self, word: &[u8]) -> Option<()> {
        let found = self.rest().starts_with(word);
        self.at += word.len();
        found.then_some(())
    }

    /// Skips a number. Refuses one that no float can hold; where the number of digits does not decide, asks serde_json.
    fn number(&mut self) -> Option<()> {
        let start = self.at;
        self.take(b"-");
        let zero = self.rest().first() == Some(&b'0');
        let whole = self.digits()?;
        if zero && whole > 1 {
            return None;
        }
        if self.take(b".") {
            self.digits()?;
        }
        let exponent = self.take(b"eE");
        if exponent {
            self.take(b"+-");
            self.digits()?;
        }
        if exponent || whole > FINITE {
            serde_json::from_str::<f64>(self.text.get(start..self.at)?).ok()?;
        }
        Some(())
    }

    /// Skips digits, and returns how many; there must be at least one.
    fn digits(&mut self) -> Option<usize> {
        let count = self.rest().iter().take_while(|byte| byte.is_ascii_digit()).count();
        self.at += count;
        (count > 0).then_some(count)
    }

    /// Skips the next byte if it is one of these. Returns whether it was.
    fn take(&mut self, bytes: &[u8]) -> bool {
        let found = self.rest().first().is_some_and(|byte| bytes.contains(byte));
        self.at += usize::from(found);
        found
    }

    /// The rest of the text, white space included.
    fn rest(&self) -> &'a [u8] {
        self.text.as_bytes().get(self.at..).unwrap_or_default()
    }
}

/// The number of bytes before the first that ends a string, begins an escape or must not be in a string.
///
/// Most strings are short, so that the first word decides. After it, whole blocks are examined, and words again in a
/// block that is not plain.
fn plain(bytes: &[u8]) -> usize {
    let mut at = plain_of_word(bytes);
    if at < WORD {
        return at;
    }
    let (blocks, _) = bytes[at..].as_chunks::<BLOCK>();
    at += BLOCK * blocks.iter().take_while(|block| is_plain(block)).count();
    loop {
        let more = plain_of_word(&bytes[at..]);
        at += more;
        if more < WORD {
            return at;
        }
    }
}

/// The same for the first word; returns its size if it is plain.
///
/// A byte below 0x20 borrows from its highest bit when 0x20 is subtracted, and a 0 when 1 is. The borrow may reach
/// higher bytes, but never lower ones, so the lowest byte found is right.
fn plain_of_word(bytes: &[u8]) -> usize {
    const ONES: u64 = u64::MAX / 0xFF;
    const HIGHEST: u64 = ONES << 7;
    let Some(word) = bytes.first_chunk::<WORD>() else {
        return bytes.iter().take_while(|byte| !matches!(**byte, b'"' | b'\\' | 0..0x20)).count();
    };
    let word = u64::from_le_bytes(*word);
    let quote = word ^ (ONES * u64::from(b'"'));
    let backslash = word ^ (ONES * u64::from(b'\\'));
    let control = word.wrapping_sub(ONES * 0x20) & !word;
    let quote = quote.wrapping_sub(ONES) & !quote;
    let backslash = backslash.wrapping_sub(ONES) & !backslash;
    let found = (control | quote | backslash) & HIGHEST;
    found.trailing_zeros() as usize / 8
}

/// Whether a whole block is plain. No branch depends on a byte, so that the compiler can compare many at once.
fn is_plain(block: &[u8; BLOCK]) -> bool {
    let special = |byte: u8| u8::from(byte == b'"') | u8::from(byte == b'\\') | u8::from(byte < 0x20);
    block.iter().fold(0, |found, byte| found | special(*byte)) == 0
}

#[cfg(test)]
#[path = "scan_tests.rs"]
mod tests;
