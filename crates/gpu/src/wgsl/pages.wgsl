// Where a row of a step belongs, and how pages are laid out. K_ and V_ are words of a row's elements and of its
// scales behind them; a head's keys lie word by word with 64 positions side by side, its values row by row.

const K_WORDS = $K_WORDSu;
const K_SCALES = $K_SCALESu;
const V_WORDS = $V_WORDSu;
const V_SCALES = $V_SCALESu;
const HEAD_WORDS = (K_WORDS + K_SCALES + V_WORDS + V_SCALES) * 64u;

// Sequence of row r: its number and the row's index in it. seqs is operand $SEQS: [4, S].
fn place(r: u32) -> vec2<u32> {
    for (var s = 0u; s < n1($SEQSu); s += 1u) {
        let at = base($SEQSu) + s * s1($SEQSu);
        let first = ld$SEQS(at);
        if (r >= first && r < first + ld$SEQS(at + s0($SEQSu))) {
            return vec2<u32>(s, r - first + ld$SEQS(at + 2u * s0($SEQSu)));
        }
    }
    return vec2<u32>(0u, 0u);
}

// Indexes of a sequence up to the end of the step.
fn length_of(s: u32) -> u32 {
    let at = base($SEQSu) + s * s1($SEQSu);
    return ld$SEQS(at + s0($SEQSu)) + ld$SEQS(at + 2u * s0($SEQSu));
}

fn page_of(s: u32, index: u32) -> u32 {
    return ld$PAGES(base($PAGESu) + s * s1($PAGESu) + (index / 64u) * s0($PAGESu));
}

