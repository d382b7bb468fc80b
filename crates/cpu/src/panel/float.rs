//! F32, F16 and BF16 panels: one fused chain over k, ascending.

use std::marker::PhantomData;

use firth_simd::Simd;

use super::tiles::TileFn;

/// How a panel's 32 numbers of one k are read.
pub(crate) trait Element: 'static {
    /// Bytes of one number.
    const BYTES: usize;
    /// Widens 16 numbers.
    ///
    /// # Safety
    /// Sixteen numbers at `p` are readable.
    unsafe fn load<S: Simd>(s: S, p: *const u8) -> S::F;
}

macro_rules! element {
    ($name:ident, $bytes:literal, $load:ident, $doc:literal) => {
        #[doc = $doc]
        pub(crate) struct $name;
        impl Element for $name {
            const BYTES: usize = $bytes;
            #[inline(always)]
            unsafe fn load<S: Simd>(s: S, p: *const u8) -> S::F {
                // SAFETY: the caller vouches for sixteen numbers.
                unsafe { s.$load(p.cast()) }
            }
        }
    };
}
element!(F32, 4, load_ptr, "f32.");
element!(F16, 2, load_f16_ptr, "f16.");
element!(Bf16, 2, load_bf16_ptr, "bf16.");

/// Panels `[k][32]`.
pub(crate) struct Float<E>(PhantomData<E>);

impl<E: Element> TileFn for Float<E> {
    const WHOLE: bool = false;
    #[inline(always)]
    unsafe fn tile<S: Simd, const NR: usize, const NH: usize>(
        s: S,
        panel: *const u8,
        _end: *const u8,
        tile: *const u8,
        stride: usize,
        k: usize,
        row0: usize,
        half: usize,
    ) -> [[S::F; NH]; NR] {
        let mut sums = [[s.zero(); NH]; NR];
        // SAFETY: the caller vouches for k * 32 numbers in the panel and k * stride floats in the tile.
        unsafe {
            let x = tile.cast::<f32>().add(row0);
            let w = panel.add(half * 16 * E::BYTES);
            for i in 0..k {
                let mut v = [s.zero(); NH];
                for h in 0..NH {
                    v[h] = E::load(s, w.add((i * 32 + h * 16) * E::BYTES));
                }
                for r in 0..NR {
                    let a = s.splat(x.add(i * stride + r).read_unaligned());
                    for h in 0..NH {
                        sums[r][h] = s.fma(a, v[h], sums[r][h]);
                    }
                }
            }
        }
        sums
    }
}
