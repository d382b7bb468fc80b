//! Random numbers as a function of (seed, choice, token index, purpose): Philox 4x32 with ten rounds.

/// What a random number is for; the third word of the counter, so that stages draw from separate streams.
pub mod purpose {
    /// The draw of the token.
    pub const DRAW: u32 = 0;
    /// The coin of XTC.
    pub const XTC: u32 = 1;
    /// Draws inside stateful samplers.
    pub const MIROSTAT: u32 = 2;
}

/// One block of Philox 4x32-10.
///
/// Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"; the constants are theirs.
pub fn philox4x32_10(key: [u32; 2], counter: [u32; 4]) -> [u32; 4] {
    const M: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
    const BUMP: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
    let (mut k, mut c) = (key, counter);
    for _ in 0..10 {
        let (hi0, lo0) = wide(M[0], c[0]);
        let (hi1, lo1) = wide(M[1], c[2]);
        c = [hi1 ^ c[1] ^ k[0], lo1, hi0 ^ c[3] ^ k[1], lo0];
        k = [k[0].wrapping_add(BUMP[0]), k[1].wrapping_add(BUMP[1])];
    }
    c
}

/// The 64 random bits of one purpose at one token: words 1 (high) and 0 (low) of the block whose key is the
/// seed and whose counter is (token index, choice, purpose, 0).
pub fn random_u64(seed: [u32; 2], token_index: u32, choice: u32, purpose: u32) -> u64 {
    let block = philox4x32_10(seed, [token_index, choice, purpose, 0]);
    u64::from(block[1]) << 32 | u64::from(block[0])
}

fn wide(a: u32, b: u32) -> (u32, u32) {
    let product = u64::from(a) * u64::from(b);
    ((product >> 32) as u32, product as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(counter: [u32; 4], key: [u32; 2], expected: [u32; 4]) {
        assert_eq!(philox4x32_10(key, counter), expected);
    }

    // The known answers published with Random123.
    #[test]
    fn known_answers() {
        check([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        check([!0; 4], [!0; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        check(
            [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
            [0xa409_3822, 0x299f_31d0],
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
        );
    }

    #[test]
    fn word_one_is_high() {
        assert_eq!(random_u64([0; 2], 0, 0, purpose::DRAW), 0xe169_c58d_6627_e8d5);
    }
}
