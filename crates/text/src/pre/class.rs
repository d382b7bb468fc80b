//! Character classes: one set of flags per code point, and sets written with flags and ranges.

use unicode_properties::{GeneralCategoryGroup, UnicodeGeneralCategory};

/// `\p{L}`.
pub(super) const L: u16 = 1 << 0;
/// `\p{N}`.
pub(super) const N: u16 = 1 << 1;
/// `\p{M}`.
pub(super) const M: u16 = 1 << 2;
/// `\p{P}`.
pub(super) const P: u16 = 1 << 3;
/// `\p{S}`.
pub(super) const S: u16 = 1 << 4;
/// `\s`: the characters with the property White_Space.
pub(super) const WS: u16 = 1 << 5;
/// CR and LF.
pub(super) const NL: u16 = 1 << 6;
/// `a-z`.
pub(super) const LOWER: u16 = 1 << 7;
/// `A-Z`.
pub(super) const UPPER: u16 = 1 << 8;
/// `\d`: `0-9` only.
pub(super) const DIGIT: u16 = 1 << 9;
/// The character U+0020 alone.
pub(super) const SPACE: u16 = 1 << 10;
/// `/`.
pub(super) const SLASH: u16 = 1 << 11;
/// LF alone.
pub(super) const LF: u16 = 1 << 12;
/// The 32 marks of ASCII: categories P and S below 0x80.
pub(super) const ASCII_MARK: u16 = 1 << 13;
/// The marks of ASCII that pre-tokenisers list beside `\p{P}`: dollar, plus, less, equals, greater,
/// circumflex, tilde, bar.
pub(super) const MATHS: u16 = 1 << 14;
/// The grave accent, which some of those lists have and some lack.
pub(super) const GRAVE: u16 = 1 << 15;

const fn ascii(c: u8) -> u16 {
    match c {
        b'a'..=b'z' => L | LOWER,
        b'A'..=b'Z' => L | UPPER,
        b'0'..=b'9' => N | DIGIT,
        b'\n' => WS | NL | LF,
        b'\r' => WS | NL,
        b'\t' | 0x0B | 0x0C => WS,
        b' ' => WS | SPACE,
        b'$' | b'+' | b'<' | b'=' | b'>' | b'^' | b'~' | b'|' => S | ASCII_MARK | MATHS,
        b'`' => S | ASCII_MARK | GRAVE,
        b'/' => P | ASCII_MARK | SLASH,
        0x21..=0x7E => P | ASCII_MARK,
        _ => 0,
    }
}

const ASCII: [u16; 128] = {
    let mut table = [0; 128];
    let mut c = 0;
    while c < 128 {
        table[c] = ascii(c as u8);
        c += 1;
    }
    table
};

/// The flags of a character.
pub(super) fn flags(c: char) -> u16 {
    if let Some(&flags) = ASCII.get(c as usize) {
        return flags;
    }
    let group = match c.general_category_group() {
        GeneralCategoryGroup::Letter => L,
        GeneralCategoryGroup::Number => N,
        GeneralCategoryGroup::Mark => M,
        GeneralCategoryGroup::Punctuation => P,
        GeneralCategoryGroup::Symbol => S,
        _ => 0,
    };
    if c.is_whitespace() { group | WS } else { group }
}

/// Code points, both ends included.
pub(super) type Ranges = &'static [(u32, u32)];

/// A set of characters: those with one of `flags` or in one of `ranges`, less those in `except`; or all
/// others.
#[derive(Clone, Copy, Debug)]
pub(super) struct Class {
    flags: u16,
    ranges: Ranges,
    except: Ranges,
    negated: bool,
}

impl Class {
    /// Characters with one of `flags`.
    pub(super) const fn of(flags: u16) -> Class {
        Class { flags, ranges: &[], except: &[], negated: false }
    }

    /// Characters in one of the ranges.
    pub(super) const fn ranges(ranges: Ranges) -> Class {
        Class { flags: 0, ranges, except: &[], negated: false }
    }

    /// Characters with none of `flags`.
    pub(super) const fn not(flags: u16) -> Class {
        Class::of(flags).negate()
    }

    /// The set together with `ranges`.
    pub(super) const fn and(self, ranges: Ranges) -> Class {
        Class { ranges, ..self }
    }

    /// The set without `ranges`.
    pub(super) const fn except(self, except: Ranges) -> Class {
        Class { except, ..self }
    }

    /// All other characters.
    pub(super) const fn negate(self) -> Class {
        Class { negated: !self.negated, ..self }
    }

    /// Whether the set holds `c`.
    pub(super) fn has(self, c: char) -> bool {
        let in_one = |ranges: Ranges| ranges.iter().any(|&(a, b)| (a..=b).contains(&(c as u32)));
        let in_flags = self.flags != 0 && flags(c) & self.flags != 0;
        let found = (in_flags || in_one(self.ranges)) && !in_one(self.except);
        found != self.negated
    }
}

/// Han ideographs.
pub(super) const HAN: Ranges = &[
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0x2CEB0, 0x2EBEF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ascii_table_agrees_with_categories() {
        for c in '\0'..='\x7f' {
            let group = match c.general_category_group() {
                GeneralCategoryGroup::Letter => L,
                GeneralCategoryGroup::Number => N,
                GeneralCategoryGroup::Punctuation => P,
                GeneralCategoryGroup::Symbol => S,
                _ => 0,
            };
            let space = if c.is_whitespace() { WS } else { 0 };
            assert_eq!(flags(c) & (L | N | M | P | S | WS), group | space, "{c:?}");
        }
    }

    #[test]
    fn classes() {
        assert!(Class::of(M).has('\u{301}') && !Class::not(M).has('\u{301}'));
        assert!(flags('\u{3000}') & WS != 0 && flags('\u{85}') & WS != 0);
        let han = Class::ranges(HAN);
        assert!(han.has('漢') && !han.has('か'));
        assert!(!Class::of(L).except(HAN).has('漢') && Class::of(L).except(HAN).has('か'));
    }
}
