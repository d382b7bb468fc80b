//! Weights as panels of 32 outputs, and the matrix product with rows of activations.
//!
//! A weight `[k, n]` (row `j` of the file is output `j`) becomes `ceil(n / 32)` panels of equal size,
//! one after the other in memory that the caller owns; missing outputs of the last are zero. An output
//! is one fixed sequence of operations on its row and the weight, whatever the number of rows, the
//! tile, the thread or the instruction set (numerics: one running f32 sum over blocks, ascending).

mod block256;
mod block32;
mod float;
mod layout;
#[cfg(test)]
mod tests;
mod tiles;
#[cfg(test)]
mod twin;

use std::marker::PhantomData;
use std::ops::Range;

use firth_quant::Dtype;
use firth_simd::{Level, dispatch, prefetch_far};

use layout::Column;
pub use layout::{Kind, PANEL};
pub use tiles::OutRows;

use crate::act::{Act, Form, TILE_ROWS};
use block32::Blocks32;
use block256::{Blocks256, Integers, Super, WIDE_BLOCK, Wide, Widen};
use float::Float;
use tiles::{TileFn, Tiles};

/// The shape of a weight in panels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PanelLayout {
    /// Type of the file's rows.
    pub dtype: Dtype,
    /// Values of a row; a whole number of blocks.
    pub k: usize,
    /// Outputs.
    pub n: usize,
}

impl PanelLayout {
    /// The layout of a weight `[k, n]`; `None` when `k` is no whole number of blocks or sizes overflow.
    pub fn new(dtype: Dtype, k: usize, n: usize) -> Option<Self> {
        let this = Self { dtype, k, n };
        let blocks = k / dtype.block_len();
        dtype.row_bytes(k)?;
        this.kind().block_bytes(dtype).checked_mul(blocks)?.checked_mul(n.div_ceil(PANEL))?;
        Some(this)
    }

    /// How the panels hold their numbers.
    pub fn kind(&self) -> Kind {
        Kind::of(self.dtype)
    }

    /// The form of activations that this weight meets.
    pub fn form(&self) -> Form {
        self.kind().form()
    }

    /// Panels.
    pub fn panels(&self) -> usize {
        self.n.div_ceil(PANEL)
    }

    /// Bytes of a panel.
    pub fn panel_bytes(&self) -> usize {
        self.blocks() * self.kind().block_bytes(self.dtype)
    }

    /// Bytes of all panels; align them to 64.
    pub fn bytes(&self) -> usize {
        self.panels() * self.panel_bytes()
    }

    /// Outputs of panel `panel`: 32, or what is left.
    pub fn panel_rows(&self, panel: usize) -> usize {
        (self.n - panel * PANEL).min(PANEL)
    }

    /// Scratch floats that [`matmul`] needs for any number of rows.
    pub fn scratch_floats(&self) -> usize {
        match self.kind() {
            Kind::Decoded => self.k * (PANEL + 1),
            _ if self.form() == Form::Q256 => self.blocks() * WIDE_BLOCK / 4,
            _ => 0,
        }
    }

    /// Scratch floats that [`matmul_mapped`] needs for any number of rows.
    pub fn mapped_scratch_floats(&self) -> usize {
        self.panel_bytes().div_ceil(4) + self.scratch_floats()
    }

    /// Lays out one panel: `rows` are the file's bytes of up to 32 rows, `dst` the panel's bytes.
    pub fn pack_panel(&self, rows: &[u8], dst: &mut [u8]) {
        self.pack_panel_before(rows, &[], dst);
    }

    /// [`PanelLayout::pack_panel`], and asks for the bytes of `next`, which the next panel is made of: a panel reads its
    /// rows column by column, an order in which the hardware reads nothing ahead.
    pub fn pack_panel_before(&self, rows: &[u8], next: &[u8], dst: &mut [u8]) {
        let row_bytes = self.row_bytes();
        assert_eq!(dst.len(), self.panel_bytes(), "bytes of a panel");
        assert!(rows.len().is_multiple_of(row_bytes.max(1)) && rows.len() <= PANEL * row_bytes);
        let n_rows = rows.len().checked_div(row_bytes).unwrap_or(0);
        if n_rows < PANEL {
            dst.fill(0);
        }
        let kind = self.kind();
        if kind.keeps_rows() {
            dst[..rows.len()].copy_from_slice(rows);
            return;
        }
        let (from, to) = (self.dtype.block_bytes(), kind.block_bytes(self.dtype));
        for (b, block) in dst.chunks_exact_mut(to).enumerate() {
            let bytes = rows.get(b * from..).unwrap_or_default();
            layout::pack_block(kind, Column { bytes, stride: row_bytes, len: from, n: n_rows }, block);
            let share = from * PANEL;
            for line in next.get(b * share..next.len().min((b + 1) * share)).unwrap_or_default().chunks(64) {
                prefetch_far(line.as_ptr());
            }
        }
    }

    /// Decodes output row `i` from all panels: the values of [`firth_quant::decode`] on its file row.
    pub fn row(&self, panels: &[u8], i: usize, out: &mut [f32]) {
        assert!(i < self.n && out.len() == self.k, "row {i} of {} with {} values", self.n, out.len());
        let panel = &panels[i / PANEL * self.panel_bytes()..][..self.panel_bytes()];
        let (kind, l) = (self.kind(), i % PANEL);
        if kind.keeps_rows() {
            return firth_quant::decode(self.dtype, &panel[l * self.row_bytes()..][..self.row_bytes()], out);
        }
        let mut file = [0; 256];
        let file = &mut file[..self.dtype.block_bytes()];
        let blocks = panel.chunks_exact(kind.block_bytes(self.dtype));
        for (block, values) in blocks.zip(out.chunks_exact_mut(self.dtype.block_len())) {
            layout::unpack_block(kind, block, file, l);
            firth_quant::decode(self.dtype, file, values);
        }
    }

    fn blocks(&self) -> usize {
        self.k / self.dtype.block_len()
    }

    fn row_bytes(&self) -> usize {
        self.blocks() * self.dtype.block_bytes()
    }
}

/// What a product computes: the outputs of the panels `range` of every row of `act`, into `out`.
///
/// Any number of rows, 0 too; a row's bits do not depend on the others.
#[derive(Clone)]
pub struct Product<'a> {
    /// Instruction set.
    pub level: Level,
    /// Which panels of the weight.
    pub range: Range<usize>,
    /// The rows, in the weight's [`PanelLayout::form`].
    pub act: Act<'a>,
    /// Where outputs go.
    pub out: OutRows<'a>,
}

/// A product with the bytes of all the weight's panels (of one expert's, for experts: another base). `scratch` holds
/// [`PanelLayout::scratch_floats`].
///
/// # Panics
/// When a size does not fit.
pub fn matmul(layout: &PanelLayout, panels: &[u8], product: Product, scratch: &mut [f32]) {
    let (Range { start, end }, bytes) = (product.range.clone(), layout.panel_bytes());
    assert!(start <= end && end <= layout.panels(), "panels {start}..{end}");
    assert!(panels.len() >= layout.bytes(), "{} bytes of panels, expected {}", panels.len(), layout.bytes());
    let memory = panels.as_ptr_range().end;
    Call::new(layout, &panels[start * bytes..end * bytes], memory, product, scratch).compute(scratch);
}

/// [`matmul`] with a weight as it lies in the file, `rows` of `n` rows: each panel is laid out in `scratch` before it is
/// used, which holds [`PanelLayout::mapped_scratch_floats`]. The same bits.
///
/// # Panics
/// When a size does not fit.
pub fn matmul_mapped(layout: &PanelLayout, rows: &[u8], product: Product, scratch: &mut [f32]) {
    let row_bytes = layout.row_bytes();
    assert_eq!(rows.len(), layout.n * row_bytes, "bytes of {} rows", layout.n);
    let (panel, scratch) = scratch.split_at_mut(layout.panel_bytes().div_ceil(4));
    let panel = &mut bytemuck::cast_slice_mut(panel)[..layout.panel_bytes()];
    for i in product.range.clone() {
        let from = i * PANEL;
        let (here, next) = rows[from * row_bytes..].split_at(layout.panel_rows(i) * row_bytes);
        layout.pack_panel_before(here, next, panel);
        let product = Product { range: i..i + 1, ..product.clone() };
        Call::new(layout, panel, panel.as_ptr_range().end, product, scratch).compute(scratch);
    }
}

/// Rows that pay for widening a panel: it costs as much as a tile, and saves a sixth of each.
const WIDEN_ROWS: usize = 6 * TILE_ROWS;

/// A product whose sizes were checked.
struct Call<'a> {
    layout: &'a PanelLayout,
    /// The bytes of the product's panels.
    panels: &'a [u8],
    /// End of the memory that the panels lie in.
    end: *const u8,
    product: Product<'a>,
}

impl<'a> Call<'a> {
    fn new(
        layout: &'a PanelLayout,
        panels: &'a [u8],
        end: *const u8,
        product: Product<'a>,
        scratch: &[f32],
    ) -> Self {
        let (range, a) = (&product.range, &product.act.layout);
        assert_eq!(panels.len(), range.len() * layout.panel_bytes(), "bytes of panels {range:?}");
        assert!(a.form == layout.form() && a.k == layout.k, "activations {a:?} for a weight {layout:?}");
        assert!(product.act.data.len() >= a.row_words() * 4 * a.rows, "bytes of activations");
        assert!(scratch.len() >= layout.scratch_floats(), "scratch floats");
        product.out.check(a.rows, layout.n);
        Call { layout, panels, end, product }
    }

    fn compute(&self, scratch: &mut [f32]) {
        let range = self.product.range.clone();
        if self.product.act.layout.rows == 0 || range.is_empty() {
            return;
        }
        match self.layout.kind() {
            Kind::F32 => self.plain::<Float<float::F32>>(range),
            Kind::F16 => self.plain::<Float<float::F16>>(range),
            Kind::BF16 => self.plain::<Float<float::Bf16>>(range),
            Kind::Q8_0 => self.plain::<Blocks32<block32::Q8_0>>(range),
            Kind::Q4_0 => self.plain::<Blocks32<block32::Q4_0>>(range),
            Kind::Q4_1 => self.plain::<Blocks32<block32::Q4_1>>(range),
            Kind::Q5_0 => self.plain::<Blocks32<block32::Q5_0>>(range),
            Kind::Q5_1 => self.plain::<Blocks32<block32::Q5_1>>(range),
            Kind::IQ4_NL => self.plain::<Blocks32<block32::IQ4_NL>>(range),
            Kind::MXFP4 => self.plain::<Blocks32<block32::Mxfp4>>(range),
            Kind::Q4_K => self.plain::<Blocks256<block256::Q4_K>>(range),
            Kind::Q2_K => self.widened::<block256::Q2_K>(range, scratch),
            Kind::Q3_K => self.widened::<block256::Q3_K>(range, scratch),
            Kind::Q5_K => self.widened::<block256::Q5_K>(range, scratch),
            Kind::Q6_K => self.widened::<block256::Q6_K>(range, scratch),
            Kind::IQ4_XS => self.widened::<block256::IQ4_XS>(range, scratch),
            Kind::Integers => self.integers(range, scratch),
            Kind::Decoded => self.decoded(range, scratch),
        }
    }

    /// The bytes of a panel.
    fn panel(&self, panel: usize) -> &[u8] {
        let bytes = self.layout.panel_bytes();
        &self.panels[(panel - self.product.range.start) * bytes..][..bytes]
    }

    /// Panels as they lie.
    fn plain<T: TileFn>(&self, range: Range<usize>) {
        let bytes = self.layout.panel_bytes();
        if self.product.act.layout.rows <= TILE_ROWS {
            // One tile: all panels in one go.
            return self.tiles::<T>(self.panels.as_ptr(), bytes, range);
        }
        for panel in range {
            self.tiles::<T>(self.panel(panel).as_ptr(), bytes, panel..panel + 1);
        }
    }

    /// Panels widened to bytes in scratch, where the rows are many enough to pay for it.
    fn widened<B: Super>(&self, range: Range<usize>, scratch: &mut [f32]) {
        if self.product.act.layout.rows < WIDEN_ROWS {
            return self.plain::<Blocks256<B>>(range);
        }
        let n_blocks = self.layout.blocks();
        let wide = &mut scratch[..n_blocks * WIDE_BLOCK / 4];
        for panel in range {
            let src = self.panel(panel);
            let dst = wide.as_mut_ptr().cast();
            dispatch(
                self.product.level,
                Widen::<B> { panel: src.as_ptr(), dst, n_blocks, kind: PhantomData },
            );
            self.tiles::<Blocks256<Wide<B>>>(dst, n_blocks * WIDE_BLOCK, panel..panel + 1);
        }
    }

    /// File rows made a widened panel in scratch.
    fn integers(&self, range: Range<usize>, scratch: &mut [f32]) {
        let (of, share) = firth_quant::integers(self.layout.dtype).expect("the kind's types have integers");
        let row_bytes = self.layout.row_bytes();
        let wide = &mut bytemuck::cast_slice_mut(scratch)[..self.layout.blocks() * WIDE_BLOCK];
        for panel in range {
            let src = self.panel(panel);
            for (b, wide) in wide.chunks_exact_mut(WIDE_BLOCK).enumerate() {
                let bytes = self.layout.dtype.block_bytes();
                let block = |l: usize| &src[l * row_bytes + b * bytes..][..bytes];
                block256::widen_integers(of, share, block, wide);
            }
            let (at, bytes) = (wide.as_ptr(), wide.len());
            match share {
                16 => self.tiles::<Blocks256<Integers<16>>>(at, bytes, panel..panel + 1),
                _ => self.tiles::<Blocks256<Integers<32>>>(at, bytes, panel..panel + 1),
            }
        }
    }

    /// File rows decoded to an f32 panel in scratch.
    fn decoded(&self, range: Range<usize>, scratch: &mut [f32]) {
        let (k, row_bytes) = (self.layout.k, self.layout.row_bytes());
        let (wide, row) = scratch[..k * (PANEL + 1)].split_at_mut(k * PANEL);
        for panel in range {
            let src = self.panel(panel);
            for l in 0..PANEL {
                firth_quant::decode(self.layout.dtype, &src[l * row_bytes..][..row_bytes], row);
                for (values, &x) in wide.chunks_exact_mut(PANEL).zip(row.iter()) {
                    values[l] = x;
                }
            }
            self.tiles::<Float<float::F32>>(wide.as_ptr().cast(), k * PANEL * 4, panel..panel + 1);
        }
    }

    /// Every tile of the activations against panels that lie at `panels`.
    fn tiles<T: TileFn>(&self, panels: *const u8, panel_bytes: usize, range: Range<usize>) {
        let (rows, height) = (self.product.act.layout.rows, self.product.act.layout.height());
        let full = rows / height;
        // What is left over first: it fetches the panel ahead.
        self.run_rows::<T>(panels, panel_bytes, range.clone(), full, 1, rows % height);
        self.run_rows::<T>(panels, panel_bytes, range, 0, full, height);
    }

    /// `n_tiles` tiles of `rows` rows from tile `tile` on.
    fn run_rows<T: TileFn>(
        &self,
        panels: *const u8,
        panel_bytes: usize,
        range: Range<usize>,
        tile: usize,
        n_tiles: usize,
        rows: usize,
    ) {
        macro_rules! run {
            ($rows:literal) => {
                self.run::<T, $rows>(panels, panel_bytes, range, tile, n_tiles, rows)
            };
        }
        match rows {
            0 => {}
            _ if self.product.level != Level::Avx512 => run!(0),
            1 => run!(1),
            2 => run!(2),
            3 => run!(3),
            4 => run!(4),
            5 => run!(5),
            _ => run!(6),
        }
    }

    fn run<T: TileFn, const R: usize>(
        &self,
        panels: *const u8,
        panel_bytes: usize,
        range: Range<usize>,
        tile: usize,
        n_tiles: usize,
        stride: usize,
    ) {
        let a = &self.product.act.layout;
        let tiles = self.product.act.data[a.tile_range(tile).start..].as_ptr();
        let tiles = Tiles::<T, R> {
            panels,
            panel_bytes,
            end: self.end,
            range,
            tiles,
            tile_bytes: stride * a.row_words() * 4,
            n_tiles,
            stride,
            row0: tile * a.height(),
            k: a.padded_k(),
            n: self.layout.n,
            out: self.product.out,
            kind: PhantomData,
        };
        dispatch(self.product.level, tiles);
    }
}
