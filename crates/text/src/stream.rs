//! Token bytes to text as it comes: whole characters only, stop texts held back until they are decided.

/// A stream of text made of the bytes of tokens.
///
/// A character whose bytes are not all there yet is held back, and so is the beginning of a stop text. The
/// deltas joined are the text of all bytes up to the stop; bytes that can never become a character turn into
/// U+FFFD, one for each broken sequence, as when the whole is decoded at once.
#[derive(Clone, Debug, Default)]
pub struct TextStream {
    stops: Vec<String>,
    /// Bytes of a character that is not complete.
    partial: Vec<u8>,
    /// Text that may be the beginning of a stop text.
    held: String,
    stopped: Option<usize>,
}

impl TextStream {
    /// A stream that ends at any of `stops` (empty ones are left out).
    pub fn new(stops: Vec<String>) -> Self {
        let stops = stops.into_iter().filter(|s| !s.is_empty()).collect();
        TextStream { stops, ..TextStream::default() }
    }

    /// Adds the bytes of a token; returns the text that is now certain.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        let mut out = String::new();
        self.push_into(bytes, &mut out);
        out
    }

    /// Adds the bytes of a token and appends the text that is now certain to `out`. Allocates nothing once the
    /// stream and `out` are large enough.
    pub fn push_into(&mut self, bytes: &[u8], out: &mut String) {
        if self.stopped.is_none() {
            self.partial.extend_from_slice(bytes);
            self.decode(false);
            self.release(false, out);
        }
    }

    /// Ends the stream: what was held back, unless a stop text ended it.
    pub fn finish(&mut self) -> String {
        let mut out = String::new();
        if self.stopped.is_none() {
            self.decode(true);
            self.release(true, &mut out);
        }
        out
    }

    /// Which stop text ended the stream, by its place among those given that are not empty.
    pub fn stopped(&self) -> Option<usize> {
        self.stopped
    }

    /// Moves complete characters to the held text.
    fn decode(&mut self, all: bool) {
        let mut used = 0;
        for chunk in self.partial.utf8_chunks() {
            let (text, broken) = (chunk.valid(), chunk.invalid());
            self.held.push_str(text);
            used += text.len();
            if broken.is_empty() {
                continue;
            }
            // Bytes at the end may be the beginning of a character.
            let at_end = used + broken.len() == self.partial.len();
            if at_end && !all && std::str::from_utf8(broken).is_err_and(|e| e.error_len().is_none()) {
                break;
            }
            self.held.push('\u{fffd}');
            used += broken.len();
        }
        self.partial.drain(..used);
    }

    /// Appends the text before a stop, or all that can not become the beginning of one.
    fn release(&mut self, all: bool, out: &mut String) {
        let first = (self.stops.iter().enumerate())
            .filter_map(|(i, s)| self.held.find(s.as_str()).map(|at| (at, i)))
            .min();
        self.stopped = first.map(|(_, i)| i);
        let free = match first {
            Some((at, _)) => at,
            None if all => self.held.len(),
            None => self.held.len() - self.undecided(),
        };
        out.push_str(&self.held[..free]);
        self.held.drain(..free);
        if self.stopped.is_some() {
            self.held.clear();
        }
    }

    /// Bytes at the end of the held text that begin a stop text.
    fn undecided(&self) -> usize {
        let begins = |stop: &String| {
            let longest = (stop.len() - 1).min(self.held.len());
            (1..=longest).rev().find(|&n| stop.as_bytes()[..n] == self.held.as_bytes()[self.held.len() - n..])
        };
        self.stops.iter().filter_map(begins).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(stops: &[&str], pieces: &[&[u8]], deltas: &[&str], rest: &str, stopped: Option<usize>) {
        let mut s = TextStream::new(stops.iter().map(|s| s.to_string()).collect());
        let found: Vec<String> = pieces.iter().map(|p| s.push(p)).collect();
        assert_eq!(found, deltas);
        assert_eq!(s.finish(), rest);
        assert_eq!(s.stopped(), stopped);
    }

    #[test]
    fn characters_come_whole() {
        check(&[], &[b"a\xf0\x9f", b"\x98", b"\x80b"], &["a", "", "\u{1f600}b"], "", None);
    }

    #[test]
    fn broken_bytes_are_replaced_not_held() {
        check(&[], &[b"a\xffb", b"\xe2\x82"], &["a\u{fffd}b", ""], "\u{fffd}", None);
    }

    #[test]
    fn stop_texts_are_held_back_and_cut_out() {
        check(&["END"], &[b"one E", b"N", b"Dtwo"], &["one ", "", ""], "", Some(0));
        check(&["END"], &[b"one E", b"N", b"T"], &["one ", "", "ENT"], "", None);
        check(&["END"], &[b"one EN"], &["one "], "EN", None);
    }

    #[test]
    fn deltas_join_to_the_whole() {
        let mut state = 7u32;
        let mut next = move || {
            state = state.wrapping_mul(1664525).wrapping_add(1013904223);
            state >> 16
        };
        // Parts of characters beside whole ones, so that many sequences break off.
        let units: [&[u8]; 9] =
            [b"a", b"ab", b"\xf0\x9f", b"\x98\x80", b"\xc3", b"\xa9", b"\xe2\x82", b"\xac", b"\xff"];
        for _ in 0..3000 {
            let pieces = (0..next() % 12).map(|_| units[next() as usize % units.len()]).collect::<Vec<_>>();
            let mut stream = TextStream::new(vec![]);
            let mut found = String::new();
            for piece in &pieces {
                stream.push_into(piece, &mut found);
            }
            found.push_str(&stream.finish());
            assert_eq!(found, String::from_utf8_lossy(&pieces.concat()), "{pieces:?}");
            // A stop text cuts at its first place in the whole, however the bytes come.
            let mut stream = TextStream::new(vec!["aab".into(), "\u{e9}a".into()]);
            let mut cut = pieces.iter().map(|piece| stream.push(piece)).collect::<String>();
            cut.push_str(&stream.finish());
            let end = ["aab", "\u{e9}a"].iter().filter_map(|stop| found.find(stop)).min();
            assert_eq!(cut, found[..end.unwrap_or(found.len())], "{pieces:?}");
            assert_eq!(stream.stopped().is_some(), end.is_some());
        }
    }

    #[test]
    fn the_earliest_stop_wins() {
        check(&["bc", "ab"], &[b"xabc"], &["x"], "", Some(1));
    }

    #[test]
    fn stops_across_characters() {
        check(&["\u{e9}!"], &[b"caf\xc3", b"\xa9", b"!"], &["caf", "", ""], "", Some(0));
    }
}
