//! Texts that decode weights: one function `chunk` per format, and one function `block` per format that is quantised.

use crate::format::Format;

const COMMON: &str = include_str!("wgsl/decode.wgsl");
const FORMATS: &str = include_str!("wgsl/formats.txt");

const BLOCKS_COMMON: &str = include_str!("wgsl/blocks.wgsl");
const BLOCKS: &str = include_str!("wgsl/blocks.txt");

/// The sixteen values of the non-linear four-bit formats, as bytes.
const NL_BYTES: &str = "0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u";

/// The same, decoded.
const NL: &str = "
fn nl1(i: u32) -> f32 {
    let t = array<vec4<u32>, 1>(vec4<u32>(0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u));
    return f32(bitcast<i32>(t[0][(i & 15u) >> 2u] << (24u - 8u * (i & 3u))) >> 24u);
}
fn nl(w: u32) -> vec4<f32> {
    return vec4<f32>(nl1(w), nl1(w >> 8u), nl1(w >> 16u), nl1(w >> 24u));
}
";

/// The text for a format: `chunk(b, c)` gives the 16 values of chunk `c` of the unit whose first word, for the
/// row in question, is `b`.
pub fn text(format: Format) -> String {
    COMMON.to_string() + &body_of(FORMATS, format).replace("$NL", NL)
}

/// The text for a quantised format: `block(b, c)` gives the 32 values of block `c` of the unit as packed integers, with their
/// scales and minima.
pub fn blocks(format: Format) -> String {
    BLOCKS_COMMON.to_string() + &body_of(BLOCKS, format).replace("$NL", NL_BYTES)
}

fn body_of(all: &'static str, format: Format) -> &'static str {
    let name = format!("== {format:?}\n");
    let start = all.find(&name).expect("every format has a text") + name.len();
    let body = &all[start..];
    &body[..body.find("\n== ").unwrap_or(body.len())]
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_table_has_the_values_of_the_format() {
        let values: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
        let words: Vec<u32> =
            values.chunks(4).map(|c| u32::from_le_bytes([c[0], c[1], c[2], c[3]].map(|v| v as u8))).collect();
        let text = words.iter().map(|w| format!("{w:#010x}u")).collect::<Vec<_>>().join(", ");
        assert!(super::NL.contains(&text), "{text}");
        assert_eq!(super::NL_BYTES, text);
    }
}
