// A recurrence over a step: one invocation per column of the state, token by token. A column stays in workgroup
// memory, where its invocation alone touches it. The logged rows of the slot read come first, then the rows of the
// step; the state after the last certain row is stored.

const LEN = $LENu;
const COLS = $COLSu;
const BASE = LEN * COLS;
const LOG_ROW = $LOG_ROWu;

var<workgroup> m: array<f32, $LEN_C>;

// Magnitudes below 2^-100 become zero, so that no state fades into denormals.
fn settled(x: f32) -> f32 { return select(x, 0.0, abs(x) < 7.8886091e-31); }

fn at(i: u32, l: u32) -> u32 { return i * $Cu + l; }

$APPLY

@compute @workgroup_size($C)
fn main(@builtin(workgroup_id) g: vec3<u32>, @builtin(local_invocation_index) l: u32) {
    let s = span_of(g.y);
    let c = g.x * $Cu + l;
    if (c >= COLS || s.n_rows == 0u) { return; }
    for (var i = 0u; i < rt(LEN); i += 1u) {
        m[at(i, l)] = 0.0;
        if (s.read >= 0) { m[at(i, l)] = bitcast<f32>(page_ld(u32(s.read), i * COLS + c)); }
    }
    for (var r = 0u; r < s.n_log; r += 1u) {
        apply(true, u32(s.read), BASE + r * LOG_ROW, c, l);
    }
    for (var r = 0u; r < s.n_rows; r += 1u) {
        let row = s.first_row + r;
        apply(false, 0u, row, c, l);
        arena[base($Yu) + row * COLS + c] = bitcast<u32>(output(row, c, l));
        if (r + 1u == s.n_certain) {
            for (var i = 0u; i < rt(LEN); i += 1u) { page_put(s.write, i * COLS + c, bitcast<u32>(m[at(i, l)])); }
        }
    }
}
