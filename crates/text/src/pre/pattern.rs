//! The patterns of pre-tokenisers, as alternatives. Numbers (`P1` ...) are those of the names' table.

use super::class::*;
use super::scan::{Alt, BLANK, GAP, Prefix};

/// How one pass cuts a piece: every match and every gap between matches becomes a piece.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pattern {
    /// The first alternative that matches, from left to right.
    First(&'static [Alt]),
    /// Runs of the class are cut in threes from the right; what stands before a run stays with its first group.
    Thousands(Class),
    /// `(?=(\d{3})+(?!\d))`: a cut where the digits up to the run's end are a multiple of three.
    DigitCuts,
}

const ANY: usize = usize::MAX;
const LETTER: Class = Class::of(L);
const NUMBER: Class = Class::of(N);
const NEWLINE: Class = Class::of(NL);

/// `body+` after `prefix`.
const fn some(prefix: Prefix, body: Class) -> Alt {
    Alt::Run { prefix, body, min: 1, max: ANY, tail: None, contraction: false }
}

/// `body{min,max}`.
const fn count(body: Class, min: usize, max: usize) -> Alt {
    Alt::Run { prefix: Prefix::None, body, min, max, tail: None, contraction: false }
}

/// `body+` after `prefix`, then `tail*` or at most `n` of it.
const fn tailed(prefix: Prefix, body: Class, tail: Class, n: usize) -> Alt {
    Alt::Run { prefix, body, min: 1, max: ANY, tail: Some((tail, n)), contraction: false }
}

/// `body+` after `prefix`, then perhaps a contraction.
const fn word(prefix: Prefix, body: Class) -> Alt {
    Alt::Run { prefix, body, min: 1, max: ANY, tail: None, contraction: true }
}

const CONTRACTION: Alt = Alt::Contraction { any_case: true };
/// `[^\r\n\p{L}\p{N}]?`.
const LEAD: Prefix = Prefix::Maybe(Class::not(NL | L | N));
/// `[^\r\n\p{L}\p{N}]?\p{L}+`.
const LETTERS: Alt = some(LEAD, LETTER);
/// `[^\s\p{L}\p{N}]`.
const OTHER: Class = Class::not(WS | L | N);
/// ` ?[^\s\p{L}\p{N}]+[\r\n]*`.
const MARKS: Alt = tailed(BLANK, OTHER, NEWLINE, ANY);
/// ` ?[^\s\p{L}\p{N}]+[\r\n/]*`.
const MARKS_SLASH: Alt = tailed(BLANK, OTHER, Class::of(NL | SLASH), ANY);
/// `[ASCII mark][A-Za-z]+`.
const MARK_WORD: Alt = some(Prefix::One(Class::of(ASCII_MARK)), Class::of(LOWER | UPPER));
/// `[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+`.
const MARKED_WORD: Alt = some(Prefix::Maybe(Class::not(NL | L | P | S)), Class::of(L | M));
/// ` ?[\p{P}\p{S}]+[\r\n]*`.
const SYMBOLS: Alt = tailed(BLANK, Class::of(P | S), NEWLINE, ANY);
const DIGITS_1: Alt = count(NUMBER, 1, 1);
const DIGITS_3: Alt = count(NUMBER, 1, 3);

use Alt::{Lines, Spaces, SpacesBefore};
use Pattern::First;

pub(super) const P1: Pattern = First(&[CONTRACTION, LETTERS, DIGITS_3, MARKS, Lines, SpacesBefore, Spaces]);
pub(super) const P2: Pattern = First(&[CONTRACTION, LETTERS, DIGITS_3, MARKS, Lines, Alt::SpacesByPowers]);
pub(super) const P3: Pattern = First(&[count(NEWLINE, 1, 1)]);
pub(super) const P4: Pattern = First(&[some(GAP, Class::ranges(CASED_LETTERS))]);
pub(super) const P5: Pattern = First(&[some(GAP, Class::ranges(MARKS_AND_LETTERS))]);
pub(super) const P6: Pattern = First(&[Alt::SpacesAtEnd]);
pub(super) const P7: Pattern =
    First(&[some(Prefix::None, Class::ranges(&[(0x4E00, 0x9FA5), (0x0800, 0x4E00), (0xAC00, 0xD7FF)]))]);
pub(super) const P8: Pattern = First(&[some(Prefix::None, NUMBER)]);
pub(super) const P9: Pattern = First(&[DIGITS_3]);
pub(super) const P10: Pattern = First(&[some(Prefix::None, Class::ranges(KANJI_KANA))]);
pub(super) const P11: Pattern = First(&[MARK_WORD, MARKED_WORD, SYMBOLS, Lines, SpacesBefore, Spaces]);
pub(super) const P12: Pattern = First(&[
    MARK_WORD,
    MARKED_WORD,
    some(BLANK, Class::of(P | S)),
    count(NEWLINE, 1, 1),
    SpacesBefore,
    Spaces,
]);
pub(super) const P13: Pattern = First(&[DIGITS_1]);
pub(super) const P14: Pattern = First(&[
    some(Prefix::None, Class::ranges(&[(0xAC00, 0xD7A3), (0x3131, 0x318E)])),
    some(Prefix::None, Class::ranges(CJK_MARKS)),
    some(Prefix::None, Class::ranges(&[(0x3105, 0x312F)])),
    some(Prefix::None, Class::ranges(KANJI_KANA)),
]);
pub(super) const P15: Pattern =
    First(&[word(LEAD, Class::of(L | M)), DIGITS_1, MARKS_SLASH, Lines, SpacesBefore, Spaces]);
pub(super) const P16: Pattern = First(&[some(GAP, LETTER)]);
pub(super) const P17: Pattern = First(&[some(GAP, Class::of(P))]);
pub(super) const P18: Pattern = First(&[some(Prefix::None, Class::of(P | MATHS | GRAVE))]);
pub(super) const P19: Pattern = First(&[
    Alt::Contraction { any_case: false },
    some(BLANK, LETTER),
    some(BLANK, NUMBER),
    some(BLANK, OTHER),
    SpacesBefore,
    Spaces,
]);
pub(super) const P20: Pattern = First(&[count(Class::of(DIGIT), 3, 3)]);
pub(super) const P21: Pattern = First(&[CONTRACTION, LETTERS, DIGITS_1, MARKS, Lines, SpacesBefore, Spaces]);
pub(super) const P22: Pattern = First(&[
    CONTRACTION,
    some(LEAD, Class::of(L | M)),
    DIGITS_1,
    tailed(BLANK, Class::not(WS | L | M | N), NEWLINE, ANY),
    Lines,
    SpacesBefore,
    Spaces,
]);
pub(super) const P23: Pattern = First(&[some(BLANK, Class::of(WS).and(SENTENCE_MARKS).negate())]);
pub(super) const P24: Pattern =
    First(&[Alt::Cased { base: L, contraction: false }, DIGITS_1, MARKS_SLASH, Lines, SpacesBefore, Spaces]);
pub(super) const P25: Pattern =
    First(&[Alt::Tagged { open: "<sentinel:", body: Class::of(DIGIT), min: 1, max: ANY, close: '>' }]);
pub(super) const P26: Pattern = First(&[Alt::Tagged {
    open: "IMGIMG",
    body: Class::ranges(&[('A' as u32, 'I' as u32)]),
    min: 1,
    max: 4,
    close: 'Z',
}]);
pub(super) const P27: Pattern = First(&[
    count(Class::of(LF).and(&[(9, 9)]), 1, 1),
    count(Class::of(SPACE), 4, 4),
    count(Class::of(SPACE), 2, 2),
]);
pub(super) const P28: Pattern = First(&[count(Class::of(P | ASCII_MARK), 1, 1)]);
pub(super) const P29: Pattern =
    First(&[Alt::Cased { base: L, contraction: true }, DIGITS_3, MARKS_SLASH, Lines, SpacesBefore, Spaces]);
pub(super) const P30: Pattern = First(&[
    Alt::Cased { base: L | M, contraction: true },
    DIGITS_3,
    MARKS_SLASH,
    Lines,
    SpacesBefore,
    Spaces,
]);
pub(super) const P31: Pattern = Pattern::Thousands(NUMBER);
pub(super) const P32: Pattern =
    First(&[word(LEAD, Class::of(L | M)), DIGITS_3, MARKS_SLASH, Lines, SpacesBefore, Spaces]);
pub(super) const P33: Pattern = First(&[
    some(Prefix::None, Class::ranges(HAN)),
    word(LEAD, LETTER.except(HAN)),
    DIGITS_3,
    MARKS,
    Lines,
    SpacesBefore,
    Spaces,
]);
pub(super) const P34: Pattern = Pattern::DigitCuts;
/// `\s*[\r\n]` reaches as far as `\s*[\r\n]+`: to the last line end of the white space.
pub(super) const P35: Pattern = P21;
pub(super) const P36: Pattern =
    First(&[CONTRACTION, LETTERS, DIGITS_1, some(BLANK, OTHER), Lines, SpacesBefore, Spaces]);
pub(super) const P37: Pattern = First(&[LETTERS, DIGITS_1, MARKS, Lines, SpacesBefore, Spaces]);
pub(super) const P38: Pattern = Pattern::Thousands(NUMBER);
pub(super) const P39: Pattern = First(&[some(Prefix::None, Class::ranges(SCRIPTS))]);
pub(super) const P40: Pattern = P11;
pub(super) const P41: Pattern =
    First(&[some(Prefix::None, Class::not(LF)), some(Prefix::None, Class::of(LF))]);
pub(super) const P42: Pattern = First(&[
    CONTRACTION,
    Alt::Phrase,
    DIGITS_1,
    tailed(BLANK, OTHER, Class::of(NL | SLASH), 1),
    Lines,
    SpacesBefore,
    Spaces,
]);
pub(super) const P43: Pattern =
    First(&[CONTRACTION, LETTERS, some(Prefix::None, NUMBER), MARKS, Lines, SpacesBefore, Spaces]);
pub(super) const P44: Pattern = First(&[some(Prefix::None, Class::not(WS))]);
pub(super) const P45: Pattern = First(&[some(Prefix::None, Class::of(P | MATHS))]);

const KANJI_KANA: Ranges = &[(0x4E00, 0x9FA5), (0x3040, 0x309F), (0x30A0, 0x30FF)];
const SENTENCE_MARKS: Ranges = &[
    (0x28, 0x29),
    (0x7C, 0x7C),
    (0x2E, 0x2E),
    (0x2C, 0x2C),
    (0x21, 0x21),
    (0x3F, 0x3F),
    (0x2026, 0x2026),
    (0x3002, 0x3002),
    (0xFF0C, 0xFF0C),
    (0x3001, 0x3001),
    (0x0964, 0x0964),
    (0x06D4, 0x06D4),
    (0x060C, 0x060C),
];
const MARKS_AND_LETTERS: Ranges =
    &[(0x21, 0x2F), (0x3A, 0x7E), (0xFF01, 0xFF0F), (0xFF1A, 0xFF5E), (0x2018, 0x201F), (0x3000, 0x3002)];
const CJK_MARKS: Ranges = &[
    (0xFF01, 0xFF01),
    (0x2026, 0x2026),
    (0x201C, 0x201C),
    (0x201D, 0x201D),
    (0x2018, 0x2018),
    (0x2019, 0x2019),
    (0x2014, 0x2014),
    (0xFF1A, 0xFF1A),
    (0xFF1B, 0xFF1B),
    (0xFF0C, 0xFF0C),
    (0x3001, 0x303F),
    (0xFE30, 0xFE4F),
];
const SCRIPTS: Ranges = &[
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x8C48, 0xFAFF),
    (0x3040, 0x309F),
    (0x30A0, 0x30FF),
    (0xFF65, 0xFF9F),
    (0x2F00, 0x2FDF),
    (0x0E40, 0x0E7F),
    (0x0E80, 0x0EFF),
    (0x1780, 0x17FF),
    (0x1000, 0x109F),
    (0xAA60, 0xAA7F),
    (0xA9E0, 0xA9FF),
    (0xAC00, 0xD7AF),
    (0x1100, 0x11FF),
];
#[rustfmt::skip]
const CASED_LETTERS: Ranges = &[
    (0x0041, 0x005A), (0x0061, 0x007A), (0x00B5, 0x00B5), (0x00C0, 0x00D6), (0x00D8, 0x00F6),
    (0x00F8, 0x01BA), (0x01BC, 0x01BF), (0x01C4, 0x0293), (0x0295, 0x02AF), (0x0370, 0x0373),
    (0x0376, 0x0376), (0x0377, 0x0377), (0x037B, 0x037D), (0x037F, 0x037F), (0x0386, 0x0386),
    (0x0388, 0x038A), (0x038C, 0x038C), (0x038E, 0x03A1), (0x03A3, 0x03F5), (0x03F7, 0x0481),
    (0x048A, 0x052F), (0x0531, 0x0556), (0x10A0, 0x10C5), (0x13A0, 0x13F5), (0x13F8, 0x13FD),
    (0x1C90, 0x1CBA), (0x1CBD, 0x1CBF), (0x1D00, 0x1D2B), (0x1D6B, 0x1D77), (0x1D79, 0x1D9A),
    (0x1E00, 0x1F15), (0x1F18, 0x1F1D), (0x1F20, 0x1F45), (0x1F48, 0x1F4D), (0x1F50, 0x1F57),
    (0x1F59, 0x1F59), (0x1F5B, 0x1F5B), (0x1F5D, 0x1F5D), (0x1F5F, 0x1F7D), (0x1F80, 0x1FB4),
    (0x1FB6, 0x1FBC), (0x1FBE, 0x1FBE), (0x1FC2, 0x1FC4), (0x1FC6, 0x1FCC), (0x1FD0, 0x1FD3),
    (0x1FD6, 0x1FDB), (0x1FE0, 0x1FEC), (0x1FF2, 0x1FF4), (0x1FF6, 0x1FFC), (0x2102, 0x2102),
    (0x2107, 0x2107), (0x210A, 0x2113), (0x2115, 0x2115), (0x2119, 0x211D), (0x2124, 0x2124),
    (0x2126, 0x2126), (0x2128, 0x2128), (0x212A, 0x212D), (0x212F, 0x2134), (0x2139, 0x2139),
    (0x213C, 0x213F), (0x2145, 0x2149), (0x214E, 0x214E), (0x2183, 0x2183), (0x2184, 0x2184),
    (0x2C00, 0x2C7B), (0x2C7E, 0x2CE4), (0x2CEB, 0x2CEE), (0x2CF2, 0x2CF2), (0x2CF3, 0x2CF3),
    (0xA640, 0xA66D), (0xA680, 0xA69B), (0xA722, 0xA76F), (0xA771, 0xA787), (0xA78B, 0xA78E),
    (0xAB70, 0xABBF), (0xFB00, 0xFB06), (0xFB13, 0xFB17), (0xFF21, 0xFF3A), (0xFF41, 0xFF5A),
    (0x10400, 0x1044F), (0x104B0, 0x104D3), (0x104D8, 0x104FB), (0x10C80, 0x10CB2), (0x10CC0, 0x10CF2),
    (0x118A0, 0x118DF), (0x1E900, 0x1E943),
];
