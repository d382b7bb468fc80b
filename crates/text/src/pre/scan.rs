//! Matching without backtracking: what a pattern is made of, and how far it reaches at a position.
//!
//! Every alternative is matched in time that is linear in what it consumes, or remembers the run of
//! white space it looked through, so that a text is split in linear time whatever it holds.

use super::class::{Class, L, LOWER, N, NL, SPACE, UPPER, WS, flags};

/// What may stand before the body of a [`Alt::Run`].
#[derive(Clone, Copy, Debug)]
pub(super) enum Prefix {
    /// Nothing.
    None,
    /// One character of the class, or nothing.
    Maybe(Class),
    /// One character of the class.
    One(Class),
}

/// One alternative of a pattern.
#[derive(Clone, Copy, Debug)]
pub(super) enum Alt {
    /// `'s`, `'t`, `'re`, `'ve`, `'m`, `'ll`, `'d`, in lower case only or in any.
    Contraction { any_case: bool },
    /// A prefix, then `min..=max` characters of `body`, then up to `tail.1` of `tail.0`, then perhaps a
    /// contraction of any case.
    Run {
        prefix: Prefix,
        body: Class,
        min: usize,
        max: usize,
        tail: Option<(Class, usize)>,
        contraction: bool,
    },
    /// A word that ends where lower case goes over to upper case: `X?A*B+` or `X?A+B*`, then perhaps a
    /// contraction. `X` is no line end, letter or number; `A` is `base` without `a-z`, `B` `base` without `A-Z`.
    Cased { base: u16, contraction: bool },
    /// `X?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+`: words joined by single spaces.
    Phrase,
    /// `\s*[\r\n]+`.
    Lines,
    /// `\s+(?!\S)`.
    SpacesBefore,
    /// `\s+`.
    Spaces,
    /// `\s+$`.
    SpacesAtEnd,
    /// `\s{n}(?!\S)` for n = 512, 256, ..., 4, then `\s{1,2}(?!\S)`, then `\s`.
    SpacesByPowers,
    /// The literal, then `min..=max` characters of the class, then the closing character.
    Tagged { open: &'static str, body: Class, min: usize, max: usize, close: char },
}

/// A run of white space that was looked through: its bounds and the end of its last line end.
#[derive(Clone, Copy, Debug, Default)]
struct SpaceRun {
    start: usize,
    end: usize,
    lines_end: usize,
}

/// A piece of text and what is known of it.
pub(super) struct Scan<'a> {
    text: &'a str,
    run: SpaceRun,
}

impl<'a> Scan<'a> {
    pub(super) fn new(text: &'a str) -> Scan<'a> {
        Scan { text, run: SpaceRun::default() }
    }

    fn at(&self, pos: usize) -> Option<char> {
        self.text[pos..].chars().next()
    }

    /// End of the longest run of at most `max` characters of `class` from `pos`, and its length.
    fn take(&self, pos: usize, class: Class, max: usize) -> (usize, usize) {
        let (mut end, mut n) = (pos, 0);
        for c in self.text[pos..].chars().take(max).take_while(|&c| class.has(c)) {
            end += c.len_utf8();
            n += 1;
        }
        (end, n)
    }

    fn all(&self, pos: usize, class: Class) -> usize {
        self.take(pos, class, usize::MAX).0
    }

    /// The run of white space from `pos`, remembered so that later positions in it cost nothing.
    fn spaces(&mut self, pos: usize) -> SpaceRun {
        if !(self.run.start..self.run.end).contains(&pos) {
            let mut run = SpaceRun { start: pos, end: pos, lines_end: pos };
            for c in self.text[pos..].chars() {
                let flags = flags(c);
                if flags & WS == 0 {
                    break;
                }
                run.end += c.len_utf8();
                if flags & NL != 0 {
                    run.lines_end = run.end;
                }
            }
            self.run = run;
        }
        self.run
    }

    fn contraction(&self, pos: usize, any_case: bool) -> Option<usize> {
        let rest = &self.text.as_bytes()[pos..];
        let letter = |i: usize| rest.get(i).map(|c| if any_case { c.to_ascii_lowercase() } else { *c });
        if rest.first() != Some(&b'\'') {
            return None;
        }
        match (letter(1)?, letter(2)) {
            (b's' | b't' | b'm' | b'd', _) => Some(pos + 2),
            (b'r' | b'v', Some(b'e')) | (b'l', Some(b'l')) => Some(pos + 3),
            _ => None,
        }
    }

    fn maybe_contraction(&self, pos: usize, wanted: bool) -> usize {
        let end = if wanted { self.contraction(pos, true) } else { None };
        end.unwrap_or(pos)
    }

    /// Starts of the body, the greedy choice first.
    fn starts(&self, pos: usize, prefix: Prefix) -> [Option<usize>; 2] {
        let after = |class: Class| self.at(pos).filter(|&c| class.has(c)).map(|c| pos + c.len_utf8());
        match prefix {
            Prefix::None => [Some(pos), None],
            Prefix::One(class) => [after(class), None],
            Prefix::Maybe(class) => [after(class), Some(pos)],
        }
    }

    fn cased(&self, pos: usize, base: u16, contraction: bool) -> Option<usize> {
        let upper = |c: char| flags(c) & base != 0 && flags(c) & LOWER == 0;
        let lower = |c: char| flags(c) & base != 0 && flags(c) & UPPER == 0;
        let reach = |from: usize, f: &dyn Fn(char) -> bool| {
            let rest = &self.text[from..];
            from + rest.find(|c| !f(c)).unwrap_or(rest.len())
        };
        let starts = self.starts(pos, Prefix::Maybe(Class::not(NL | L | N)));
        let falling = starts.iter().flatten().find_map(|&start| {
            let turn = reach(start, &upper);
            let end = reach(turn, &lower);
            if end > turn {
                return Some(end);
            }
            // Nothing lower follows, so A* gives back up to the last character that is in B as well.
            let (at, c) = self.text[start..turn].char_indices().rev().find(|&(_, c)| lower(c))?;
            Some(start + at + c.len_utf8())
        });
        let rising = || {
            let found = starts.iter().flatten().map(|&start| (start, reach(start, &upper)));
            let (_, turn) = found.into_iter().find(|(start, turn)| turn > start)?;
            Some(reach(turn, &lower))
        };
        let end = falling.or_else(rising)?;
        Some(self.maybe_contraction(end, contraction))
    }

    fn phrase(&self, pos: usize) -> Option<usize> {
        let (letter, mark) = (Class::of(L), Class::of(super::class::M));
        let word = |from: usize| {
            let (end, n) = self.take(from, letter, 1);
            (n == 1).then(|| self.all(end, mark))
        };
        let starts = self.starts(pos, Prefix::Maybe(Class::not(NL | L | N)));
        let mut end = starts.iter().flatten().find_map(|&start| word(start))?;
        loop {
            let spaced = || self.text[end..].starts_with(' ').then(|| word(end + 1)).flatten();
            match word(end).or_else(spaced) {
                Some(next) => end = next,
                None => return Some(end),
            }
        }
    }

    fn spaces_before(&mut self, pos: usize) -> Option<usize> {
        let run = self.spaces(pos);
        if run.end == self.text.len() {
            return (run.end > pos).then_some(run.end);
        }
        let last = self.text[pos..run.end].chars().next_back()?;
        let end = run.end - last.len_utf8();
        (end > pos).then_some(end)
    }

    fn spaces_by_powers(&self, pos: usize) -> Option<usize> {
        let space = Class::of(WS);
        let (_, n) = self.take(pos, space, 513);
        let whole = |n: usize| self.take(pos, space, n).0;
        let free = |k: usize| n > k || (n == k && whole(k) == self.text.len());
        let steps = [512, 256, 128, 64, 32, 16, 8, 4, 2, 1];
        steps.into_iter().find(|&k| free(k)).or((n > 0).then_some(1)).map(whole)
    }

    fn tagged(
        &self,
        pos: usize,
        open: &str,
        body: Class,
        counts: (usize, usize),
        close: char,
    ) -> Option<usize> {
        self.text[pos..].starts_with(open).then_some(())?;
        let (end, n) = self.take(pos + open.len(), body, counts.1);
        (n >= counts.0 && self.text[end..].starts_with(close)).then(|| end + close.len_utf8())
    }

    fn run(&self, pos: usize, alt: &Alt) -> Option<usize> {
        let &Alt::Run { prefix, body, min, max, tail, contraction } = alt else { return None };
        let end = self.starts(pos, prefix).iter().flatten().find_map(|&start| {
            let (end, n) = self.take(start, body, max);
            (n >= min).then_some(end)
        })?;
        let end = tail.map_or(end, |(class, max)| self.take(end, class, max).0);
        Some(self.maybe_contraction(end, contraction))
    }

    /// Where the alternative ends when it starts at `pos`, or `None` where it does not match.
    pub(super) fn matches(&mut self, pos: usize, alt: &Alt) -> Option<usize> {
        let end = match *alt {
            Alt::Contraction { any_case } => self.contraction(pos, any_case),
            Alt::Run { .. } => self.run(pos, alt),
            Alt::Cased { base, contraction } => self.cased(pos, base, contraction),
            Alt::Phrase => self.phrase(pos),
            Alt::Lines => Some(self.spaces(pos).lines_end),
            Alt::SpacesBefore => self.spaces_before(pos),
            Alt::Spaces => Some(self.spaces(pos).end),
            Alt::SpacesAtEnd => Some(self.spaces(pos).end).filter(|&end| end == self.text.len()),
            Alt::SpacesByPowers => self.spaces_by_powers(pos),
            Alt::Tagged { open, body, min, max, close } => self.tagged(pos, open, body, (min, max), close),
        };
        end.filter(|&end| end > pos)
    }
}

/// The space that may stand before a run.
pub(super) const BLANK: Prefix = Prefix::Maybe(Class::of(SPACE));
/// Any white space that may stand before a run.
pub(super) const GAP: Prefix = Prefix::Maybe(Class::of(WS));
