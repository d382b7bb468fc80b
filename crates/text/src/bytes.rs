//! The alphabet in which byte-level vocabularies spell bytes.

/// The character that stands for each byte: itself where it prints in Latin-1, else U+0100 and on.
const fn alphabet() -> [char; 256] {
    let mut table = ['\0'; 256];
    let (mut byte, mut next) = (0usize, 0x100u32);
    while byte < 256 {
        table[byte] = if matches!(byte as u8, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF) {
            byte as u8 as char
        } else {
            next += 1;
            match char::from_u32(next - 1) {
                Some(c) => c,
                None => panic!("68 letters above U+0100 exist"),
            }
        };
        byte += 1;
    }
    table
}

const ALPHABET: [char; 256] = alphabet();

/// The letter of a byte.
pub(crate) fn letter(byte: u8) -> char {
    ALPHABET[byte as usize]
}

/// The byte of a letter, or `None` for a character outside the alphabet.
pub(crate) fn byte(letter: char) -> Option<u8> {
    match letter as u32 {
        0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => Some(letter as u32 as u8),
        code @ 0x100..=0x143 => {
            let nth = (code - 0x100) as usize;
            (0..=255u8).filter(|&b| ALPHABET[b as usize] as u32 >= 0x100).nth(nth)
        }
        _ => None,
    }
}

/// The byte of a text `<0xHH>`.
pub(crate) fn hex_byte(text: &[u8]) -> Option<u8> {
    let digits = text.strip_prefix(b"<0x")?.strip_suffix(b">")?;
    let digits = std::str::from_utf8(digits).ok().filter(|d| d.len() == 2 && !d.starts_with('+'))?;
    u8::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_and_bytes_are_one_to_one() {
        for b in 0..=255 {
            assert_eq!(byte(letter(b)), Some(b));
        }
        assert_eq!((letter(b' '), letter(b'\n'), letter(0xAD)), ('Ġ', 'Ċ', '\u{143}'));
        assert_eq!((byte('\u{144}'), byte(' '), byte('漢')), (None, None, None));
    }

    #[test]
    fn hex_bytes() {
        assert_eq!(hex_byte(b"<0x0A>"), Some(10));
        assert_eq!(
            (hex_byte(b"<0x+1>"), hex_byte(b"<0x>"), hex_byte(b"<0x0A"), hex_byte(b"<0")),
            (None, None, None, None)
        );
    }
}
