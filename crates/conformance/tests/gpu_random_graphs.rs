//! Random graphs over a GPU and a CPU with kernels missing at random: what the reference says, or a refusal.

use firth_conformance::{gpu, split};

/// As many as fit a test; `cargo xtask graphs` takes more.
const GRAPHS: usize = 400;

#[test]
fn graphs_over_both_agree_with_the_reference() {
    let Some(device) = gpu::device() else { return };
    let mut tally = split::Tally::default();
    (0..GRAPHS).for_each(|seed| split::one(seed, &device, &mut tally));
    println!("{tally:?}");
    assert!(tally.failed.is_empty(), "{} failed:\n{}", tally.failed.len(), tally.failed.join("\n"));
    assert_eq!(tally.loaded + tally.refused, GRAPHS);
    assert!(2 * tally.loaded >= GRAPHS && 2 * tally.crossed >= tally.loaded, "{tally:?}");
    assert!(tally.refused > 0 && tally.exact > 0 && tally.exact < tally.loaded, "{tally:?}");
}
