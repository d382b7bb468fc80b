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
        if self.stopped.is_some() {
            return String::new();
        }
        self.partial.extend_from_slice(bytes);
        self.decode(false);
        self.release(false)
    }

    /// Ends the stream: what was held back, unless a stop text ended it.
    pub fn finish(&mut self) -> String {
        if self.stopped.is_some() {
            return String::new();
        }
        self.decode(true);
        self.release(true)
    }

    /// Which stop text ended the stream, by its place among those given that are not empty.
    pub fn stopped(&self) -> Option<usize> {
        self.stopped
    }

    /// Moves complete characters to the held text.
    fn decode(&mut self, all: bool) {
        let bytes = std::mem::take(&mut self.partial);
        let mut rest = &bytes[..];
        loop {
            match std::str::from_utf8(rest) {
                Ok(text) => {
                    self.held.push_str(text);
                    return;
                }
                Err(e) => {
                    let (good, bad) = rest.split_at(e.valid_up_to());
                    self.held.push_str(&String::from_utf8_lossy(good));
                    match e.error_len() {
                        Some(n) => {
                            self.held.push('\u{fffd}');
                            rest = &bad[n..];
                        }
                        // The bytes so far are the beginning of a character.
                        None if all => {
                            self.held.push('\u{fffd}');
                            return;
                        }
                        None => {
                            self.partial = bad.to_vec();
                            return;
                        }
                    }
                }
            }
        }
    }

    /// Takes the text before a stop, or all that can not become the beginning of one.
    fn release(&mut self, all: bool) -> String {
        let first = (self.stops.iter().enumerate())
            .filter_map(|(i, s)| self.held.find(s.as_str()).map(|at| (at, i)))
            .min();
        if let Some((at, i)) = first {
            self.stopped = Some(i);
            let mut text = std::mem::take(&mut self.held);
            text.truncate(at);
            return text;
        }
        let keep = if all { 0 } else { self.undecided() };
        let rest = self.held.split_off(self.held.len() - keep);
        std::mem::replace(&mut self.held, rest)
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
    fn the_earliest_stop_wins() {
        check(&["bc", "ab"], &[b"xabc"], &["x"], "", Some(1));
    }

    #[test]
    fn stops_across_characters() {
        check(&["\u{e9}!"], &[b"caf\xc3", b"\xa9", b"!"], &["caf", "", ""], "", Some(0));
    }
}
