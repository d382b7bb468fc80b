// One sequence of a step, from the sequence table (operand $SEQS) and the slot table (operand $SLOTS).

struct Span { first_row: u32, n_rows: u32, first_index: u32, n_certain: u32, read: i32, write: u32, n_log: u32 }

fn span_of(s: u32) -> Span {
    let q = base($SEQSu) + s * s1($SEQSu);
    let w = base($SLOTSu) + s * s1($SLOTSu);
    let a = s0($SEQSu);
    let b = s0($SLOTSu);
    return Span(ld$SEQS(q), ld$SEQS(q + a), ld$SEQS(q + 2u * a), ld$SEQS(q + 3u * a), bitcast<i32>(ld$SLOTS(w)),
        ld$SLOTS(w + b), ld$SLOTS(w + 2u * b));
}

// The sequence of row t of the step.
fn sequence_of(t: u32) -> Span {
    for (var s = 0u; s < n1($SEQSu); s += 1u) {
        let p = span_of(s);
        if (t >= p.first_row && t < p.first_row + p.n_rows) { return p; }
    }
    return Span(0u, 0u, 0u, 0u, -1, 0u, 0u);
}

