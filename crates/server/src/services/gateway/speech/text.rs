//! Makes a text safe for espeak-ng, which finds commands in texts: `[[…]]` holds phonemes, control characters change
//! the voice, private characters are phonemes, too. The result holds none of them.

/// Most characters without white space. Some words of 160 overrun espeak-ng's tables for a word.
const LONGEST_WORD: usize = 100;
/// A character without sound, which espeak-ng ignores between two brackets.
const SOFT_HYPHEN: char = '\u{ad}';

/// The text without commands. It sounds the same: brackets become parentheses, which espeak-ng does not speak. It ends
/// with a line break, because espeak-ng makes no audio of an empty text.
pub(super) fn plain(input: &str) -> String {
    let mut plain = String::with_capacity(input.len() + input.len() / LONGEST_WORD + 1);
    let mut word = 0;
    for c in input.chars().filter(|c| *c != SOFT_HYPHEN).map(harmless) {
        word = if c.is_whitespace() { 0 } else { word + 1 };
        if word > LONGEST_WORD {
            plain.push(' ');
            word = 1;
        }
        plain.push(c);
    }
    plain.push('\n');
    plain
}

const fn harmless(c: char) -> char {
    match c {
        '[' => '(',
        ']' => ')',
        '\n' | '\t' => c,
        '\0'..='\x1f' | '\x7f'..='\u{9f}' | '\u{e000}'..='\u{f8ff}' | '\u{f0000}'..='\u{10ffff}' => ' ',
        _ => c,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_taken_out() {
        assert_eq!(plain("a [[D2m]] [\u{ad}[b\n"), "a ((D2m)) ((b\n\n");
        assert_eq!(plain("a\u{1}300Sb\r\u{e028}\u{9b}\u{7f}"), "a 300Sb    \n");
        assert_eq!(plain("\u{ad}"), "\n");
        assert_eq!(plain("Grüße, 🎉 --help <b>"), "Grüße, 🎉 --help <b>\n");
    }

    #[test]
    fn words_are_bounded() {
        assert_eq!(plain(&"ä".repeat(100)), format!("{}\n", "ä".repeat(100)));
        assert_eq!(plain(&"ä".repeat(101)), format!("{} ä\n", "ä".repeat(100)));
        let words = plain(&format!("{0} {0}", "x".repeat(100)));
        assert_eq!(words.split_whitespace().count(), 2);
    }
}
