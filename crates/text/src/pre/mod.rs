//! Pre-tokenisers: how byte-pair vocabularies cut a text into words, one row of a table per name.

mod class;
mod pattern;
mod scan;
mod table;

use class::{Class, DIGIT, flags};
use pattern::Pattern;
use scan::Scan;
pub use table::PreTokeniser;

/// Ends of the pieces of a text, for two passes in turn.
#[derive(Debug, Default)]
pub struct Pieces {
    ends: Vec<usize>,
    next: Vec<usize>,
}

impl Pieces {
    /// Cuts `text` and returns the ends of its pieces, in bytes. No piece is empty, nothing is dropped.
    pub fn split(&mut self, pre: &PreTokeniser, text: &str) -> &[usize] {
        self.ends.clear();
        if !text.is_empty() {
            self.ends.push(text.len());
        }
        for pattern in pre.patterns {
            self.next.clear();
            let mut start = 0;
            for &end in &self.ends {
                cut(pattern, &text[start..end], start, &mut self.next);
                start = end;
            }
            std::mem::swap(&mut self.ends, &mut self.next);
        }
        &self.ends
    }
}

/// Cuts one piece, which starts at `base`, by one pattern.
fn cut(pattern: &Pattern, piece: &str, base: usize, ends: &mut Vec<usize>) {
    match pattern {
        Pattern::First(alts) => cut_by_matches(alts, piece, base, ends),
        Pattern::Thousands(digits) => cut_thousands(*digits, piece, base, ends),
        Pattern::DigitCuts => cut_digits(piece, base, ends),
    }
    if ends.last() != Some(&(base + piece.len())) {
        ends.push(base + piece.len());
    }
}

fn cut_by_matches(alts: &[scan::Alt], piece: &str, base: usize, ends: &mut Vec<usize>) {
    let mut scan = Scan::new(piece);
    let (mut gap, mut pos) = (0, 0);
    while let Some(c) = piece[pos..].chars().next() {
        let Some(end) = alts.iter().find_map(|alt| scan.matches(pos, alt)) else {
            pos += c.len_utf8();
            continue;
        };
        if pos > gap {
            ends.push(base + pos);
        }
        ends.push(base + end);
        (gap, pos) = (end, end);
    }
}

/// Calls `cut` with the start of each run of the class and the positions in it.
fn each_run(class: Class, piece: &str, mut cut: impl FnMut(&[usize])) {
    let mut run = Vec::new();
    for (at, c) in piece.char_indices() {
        if class.has(c) {
            run.push(at);
        } else if !run.is_empty() {
            run.push(at);
            cut(&run);
            run.clear();
        }
    }
    if !run.is_empty() {
        run.push(piece.len());
        cut(&run);
    }
}

fn cut_thousands(digits: Class, piece: &str, base: usize, ends: &mut Vec<usize>) {
    each_run(digits, piece, |run| {
        let n = run.len() - 1;
        let first = if n % 3 == 0 { 3 } else { n % 3 };
        ends.extend((first..=n).step_by(3).map(|i| base + run[i]));
    });
}

fn cut_digits(piece: &str, base: usize, ends: &mut Vec<usize>) {
    each_run(Class::of(DIGIT), piece, |run| {
        let n = run.len() - 1;
        let cuts = (n % 3..n).step_by(3).map(|i| run[i]);
        ends.extend(cuts.filter(|&at| at > 0).map(|at| base + at));
    });
}

/// Whether a character counts as white space.
pub(crate) fn is_space(c: char) -> bool {
    flags(c) & class::WS != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(name: &str, text: &str, expected: &[&str]) {
        let pre = PreTokeniser::named(name).unwrap();
        let mut pieces = Pieces::default();
        let mut start = 0;
        let found = pieces.split(pre, text).iter().map(|&end| {
            let piece = &text[start..end];
            start = end;
            piece
        });
        assert_eq!(found.collect::<Vec<_>>(), expected, "{name}");
    }

    #[test]
    fn llama3() {
        check(
            "llama-bpe",
            "Hello  world's 12345!\r\n\n x",
            &["Hello", " ", " world", "'s", " ", "123", "45", "!\r\n\n", " x"],
        );
        check("llama-bpe", "a \n \n  b\u{301}", &["a", " \n \n", " ", " b", "\u{301}"]);
    }

    #[test]
    fn gpt2_keeps_upper_case_contractions_together() {
        check("gpt-2", "I'VE we've  12\n\n", &["I", "'", "VE", " we", "'ve", " ", " 12", "\n\n"]);
    }

    #[test]
    fn qwen35_keeps_marks_with_letters() {
        check("qwen35", "n\u{303}o \u{303}! 12", &["n\u{303}o", " \u{303}", "!", " ", "1", "2"]);
    }

    #[test]
    fn case_changes() {
        check("gpt-4o", "HelloWorld ABCdef ÀB c's", &["Hello", "World", " ABCdef", " À", "B", " c's"]);
        check("tekken", "XMLHttp42/\n", &["XMLHttp", "4", "2", "/\n"]);
    }

    #[test]
    fn digits_from_the_right() {
        check("superbpe", "a1234567b", &["a", "1", "234", "567", "b"]);
        check("afmoe", "1234567", &["1", "234", "567"]);
        check("tiny_aya", "ab 12345", &["ab", " ", "12", "345"]);
    }

    #[test]
    fn others() {
        check("bloom", " a,b (c", &[" a", ",", "b", " (", "c"]);
        check(
            "chameleon",
            "x<sentinel:12>IMGIMGABZ",
            &["x", "<", "sentinel", ":", "1", "2", ">", "IMGIMGABZ"],
        );
        check("exaone-moe", "ab cd  ef 1", &["ab cd", " ", " ef", " ", "1"]);
        check("gemma4", "a b\n\nc", &["a b", "\n\n", "c"]);
        check("kimi-k2", "漢字か", &["漢字", "か"]);
        check("jais-2", &format!("a{}b", " ".repeat(7)), &["a", "    ", "  ", " b"]);
        check("deepseek-llm", "a  ", &["a", "  "]);
    }
}
