//! Ends of an answer that lie in its lines: a time after which the next line is the last, and lines that are set in less
//! than they should be. Editors ask for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use firth::text::Vocab;
use firth::{PieceOf, Watch, WatchVerdict as Verdict};

/// What lines are held to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LineLimits {
    /// From the first token on; what is said behind it ends with the line.
    pub time: Option<Duration>,
    /// White space at the beginning of each line but the first, at least.
    pub indent: usize,
}

impl LineLimits {
    /// Whether they limit anything.
    pub fn any(&self) -> bool {
        self.time.is_some() || self.indent > 0
    }
}

/// The lines of a text as it comes.
#[derive(Debug, Default)]
pub struct Lines {
    /// Bytes so far, and where the present line began; `None` in the first.
    n: usize,
    line: Option<usize>,
    /// Whether the line has only white space so far.
    blank: bool,
}

impl Lines {
    /// Takes text; where it shows that a line is set in less than `indent`, the byte at which the newline before that
    /// line stands, counted from the beginning of the text.
    pub fn push(&mut self, text: &[u8], indent: usize) -> Option<usize> {
        for &byte in text {
            match (byte, self.line) {
                (b'\n', _) => (self.line, self.blank) = (Some(self.n + 1), true),
                (b' ' | b'\t' | b'\r', _) => {}
                (_, Some(line)) if self.blank => {
                    if self.n - line < indent {
                        return Some(line - 1);
                    }
                    self.blank = false;
                }
                _ => {}
            }
            self.n += 1;
        }
        None
    }

    /// Where the newline stands behind which only white space has come so far.
    pub fn blank_from(&self) -> Option<usize> {
        self.line.filter(|_| self.blank).map(|line| line - 1)
    }

    /// Whether a line has ended.
    pub fn has_ended(&self) -> bool {
        self.line.is_some()
    }
}

/// Watches a generation for its limits.
pub struct LineWatch {
    vocab: Arc<Vocab>,
    piece: PieceOf,
    limits: LineLimits,
    lines: Lines,
    first: Option<Instant>,
    /// Set where a limit has ended the generation.
    reached: Arc<AtomicBool>,
}

impl LineWatch {
    /// Of a generation of which `piece` spells the tokens; `reached` is set when a limit ends it.
    pub fn new(vocab: Arc<Vocab>, piece: PieceOf, limits: LineLimits, reached: Arc<AtomicBool>) -> LineWatch {
        LineWatch { vocab, piece, limits, lines: Lines::default(), first: None, reached }
    }
}

impl Watch for LineWatch {
    fn push(&mut self, ids: &[u32]) -> Verdict {
        let first = *self.first.get_or_insert_with(Instant::now);
        for (i, id) in ids.iter().enumerate() {
            let short = self.lines.push((self.piece)(&self.vocab, *id), self.limits.indent).is_some();
            let late = self.lines.has_ended() && self.limits.time.is_some_and(|t| first.elapsed() > t);
            if short || late {
                self.reached.store(true, Relaxed);
                return Verdict::StopAfter(i + 1);
            }
        }
        Verdict::Continue
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, indent: usize, cut: Option<usize>) {
        assert_eq!(Lines::default().push(text.as_bytes(), indent), cut, "{text:?}");
        let mut lines = Lines::default();
        let cuts: Vec<_> = text.bytes().filter_map(|b| lines.push(&[b], indent)).collect();
        assert_eq!(cuts.first().copied(), cut, "{text:?} byte by byte");
    }

    #[test]
    fn lines_that_are_set_in_too_little_are_found() {
        check("f(x)\n    a\n    b", 4, None);
        check("f(x)\n    a\n  b", 4, Some(10));
        check("f(x)\n\n\n    a\n\tb", 4, Some(12));
        check("f(x)\n", 4, None);
        check("a\nb", 0, None);
        check("a\nb", 1, Some(1));
    }

    #[test]
    fn lines_that_may_be_cut_are_known() {
        let mut lines = Lines::default();
        for (text, from) in [("f", None), ("\n  ", Some(1)), ("a", None), ("\n", Some(5)), ("\n ", Some(6))] {
            assert_eq!((lines.push(text.as_bytes(), 1), lines.blank_from()), (None, from), "{text:?}");
        }
    }

    #[test]
    fn the_clock_ends_no_first_line() {
        let vocab = {
            let file = firth::bundled().expect("the bundled model");
            Arc::new(Vocab::from_metadata(file.metadata()).expect("a vocabulary"))
        };
        let piece: PieceOf = Arc::new(|_, id| if id == 1 { b"\n" } else { b"x" });
        let reached = Arc::new(AtomicBool::new(false));
        let limits = LineLimits { time: Some(Duration::ZERO), indent: 0 };
        let mut watch = LineWatch::new(vocab, piece, limits, reached.clone());
        std::thread::sleep(Duration::from_millis(1));
        assert_eq!(watch.push(&[0, 0]), Verdict::Continue);
        assert!(!reached.load(Relaxed));
        assert_eq!(watch.push(&[0, 1, 0]), Verdict::StopAfter(2));
        assert!(reached.load(Relaxed));
    }
}
